"""Names that a function of a C library may have: identifiers that mean nothing else in C or C++."""

from __future__ import annotations

import re

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Source: ISO/IEC 9899:2018, 7.1.3.
_RESERVED = re.compile(r"_[A-Z_].*|.*__.*")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Headers are for C and for C++; compilers define the last two as 1, unless told not to.
# Source: ISO/IEC 9899:2018, 6.4.1; ISO/IEC 9899:2024, 6.4.2; ISO/IEC 14882:2020, 5.11; GNU CPP
# manual, 3.7.3.
_KEYWORDS = _words("""
alignas alignof auto bool break case char const constexpr continue default do double else enum
extern false float for goto if inline int long nullptr register restrict return short signed sizeof
static static_assert struct switch thread_local true typedef typeof typeof_unqual union unsigned
void volatile while

and and_eq asm bitand bitor catch char8_t char16_t char32_t class co_await co_return co_yield compl
concept const_cast consteval constinit decltype delete dynamic_cast explicit export friend mutable
namespace new noexcept not not_eq operator or or_eq private protected public reinterpret_cast
requires static_cast template this throw try typeid typename using virtual wchar_t xor xor_eq

linux unix
""")

# Which exist for float and long double, too.  Source: ISO/IEC 9899:2018, B.2 and B.11.
_MATHEMATICAL = _words("""
acos asin atan atan2 cos sin tan acosh asinh atanh cosh sinh tanh exp exp2 expm1 frexp ilogb ldexp
log log10 log1p log2 logb modf scalbn scalbln cbrt fabs hypot pow sqrt erf erfc lgamma tgamma ceil
floor nearbyint rint lrint llrint round lround llround trunc fmod remainder remquo copysign nan
nextafter nexttoward fdim fmax fmin fma
cacos casin catan ccos csin ctan cacosh casinh catanh ccosh csinh ctanh cexp clog cabs cpow csqrt
carg cimag conj cproj creal
""")

# Source: ISO/IEC 9899:2018, annex B; of the last part POSIX.1-2017 and 4.4BSD.
_LIBRARY = _words("""
assert errno math_errhandling signbit isfinite isinf isnan isnormal fpclassify isgreater
isgreaterequal isless islessequal islessgreater isunordered
isalnum isalpha isblank iscntrl isdigit isgraph islower isprint ispunct isspace isupper isxdigit
tolower toupper iswalnum iswalpha iswctype towctrans towlower towupper
feclearexcept fegetexceptflag feraiseexcept fesetexceptflag fetestexcept fegetround fesetround
fegetenv feholdexcept fesetenv feupdateenv
imaxabs imaxdiv strtoimax strtoumax wcstoimax wcstoumax setlocale localeconv setjmp longjmp signal
raise va_arg va_copy va_end va_start offsetof
remove rename tmpfile tmpnam fclose fflush fopen freopen setbuf setvbuf fprintf fscanf printf scanf
snprintf sprintf sscanf vfprintf vfscanf vprintf vscanf vsnprintf vsprintf vsscanf fgetc fgets fputc
fputs getc getchar gets putc putchar puts ungetc fread fwrite fgetpos fseek fsetpos ftell rewind
clearerr feof ferror perror stdin stdout stderr
atof atoi atol atoll strtod strtof strtold strtol strtoll strtoul strtoull rand srand aligned_alloc
calloc free malloc realloc abort atexit at_quick_exit exit quick_exit getenv system bsearch qsort
abs labs llabs div ldiv lldiv mblen mbtowc wctomb mbstowcs wcstombs
memcpy memmove strcpy strncpy strcat strncat memcmp strcmp strcoll strncmp strxfrm memchr strchr
strcspn strpbrk strrchr strspn strstr strtok memset strerror strlen
call_once cnd_broadcast cnd_destroy cnd_init cnd_signal cnd_timedwait cnd_wait mtx_destroy mtx_init
mtx_lock mtx_timedlock mtx_trylock mtx_unlock thrd_create thrd_current thrd_detach thrd_equal
thrd_exit thrd_join thrd_sleep thrd_yield tss_create tss_delete tss_get tss_set
clock difftime mktime time timespec_get asctime ctime gmtime localtime strftime
fwprintf fwscanf swprintf swscanf vfwprintf vswprintf vwprintf wprintf wscanf fgetwc fgetws fputwc
fputws fwide getwc getwchar putwc putwchar ungetwc wcstod wcstof wcstold wcstol wcstoul wcscpy
wcsncpy wmemcpy wmemmove wcscat wcsncat wcscmp wcscoll wcsncmp wcsxfrm wmemcmp wcschr wcscspn
wcspbrk wcsrchr wcsspn wcsstr wcstok wmemchr wcslen wmemset wcsftime btowc wctob mbsinit mbrlen
mbrtowc wcrtomb mbsrtowcs wcsrtombs

accept access alarm bind chdir chmod chown close closedir connect creat dup dup2 execl execv execve
fcntl fork fstat ftruncate getcwd getpid getuid index ioctl isatty kill link listen lseek mkdir mmap
mprotect msync munmap open opendir pause pipe poll popen pclose read readdir readlink recv rindex
rmdir select send shutdown sigaction sleep socket stat strdup symlink sync times truncate umask
unlink usleep utime wait waitpid write bcmp bcopy bzero ffs j0 j1 jn y0 y1 yn gamma environ
""")

# Types and limits of <stdint.h>, which our headers include.
_OF_INTEGERS = re.compile(
    r"u?int(_fast|_least)?(8|16|32|64)_t|u?int(ptr|max)_t|[A-Z0-9_]+_(MAX|MIN|C)"
)


def why_no_name(name: str) -> str:
    """Why a function in C, which C++ may call, cannot have this name; "" if it can."""
    if not _IDENTIFIER.fullmatch(name):
        return "a name has letters, digits and underscores, and begins with no digit"
    if _RESERVED.fullmatch(name):
        return "names with two underscores, or one before a capital letter, are the compiler's"
    if name in _KEYWORDS:
        return "that is a keyword of C or C++"
    if name == "main":
        return "that is where a program begins"
    if name in _LIBRARY or _of_mathematics(name) or _OF_INTEGERS.fullmatch(name):
        return "that is a name of the C library, which programs would find in its place"
    return ""


def _of_mathematics(name: str) -> bool:
    return name in _MATHEMATICAL or (name[-1] in "fl" and name[:-1] in _MATHEMATICAL)
