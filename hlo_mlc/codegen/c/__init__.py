"""Loop programs as C11."""
