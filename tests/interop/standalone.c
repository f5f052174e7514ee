/* Calls an exported function on the bytes of one file, and writes its results to another.
 * HEADER, WORKSPACE_BYTES, RESULT_BYTES and CALL (with `in`, `out` and `workspace`) come from the
 * command line of the compiler. */
#include <stdio.h>
#include <stdlib.h>

#include HEADER

static _Alignas(64) char workspace[WORKSPACE_BYTES];

int main(int argc, char** argv) {
  if (argc != 3) return 1;
  FILE* file = fopen(argv[1], "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) return 2;
  long size = ftell(file);
  rewind(file);
  char* in = malloc(size);
  char* out = calloc(RESULT_BYTES, 1);
  if (in == NULL || out == NULL || fread(in, 1, size, file) != (size_t)size) return 3;
  fclose(file);
  CALL;
  CALL; /* what the first call left in the workspace does not matter */
  file = fopen(argv[2], "wb");
  if (file == NULL || fwrite(out, 1, RESULT_BYTES, file) != RESULT_BYTES) return 4;
  free(in);
  free(out);
  return fclose(file) == 0 ? 0 : 5;
}
