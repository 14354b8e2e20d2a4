/* For LD_PRELOAD: the program begins in the locale of its environment, as those with windows do. A locale
 * that the system does not know ends the program. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void begin(void) {
    if (setlocale(LC_ALL, "")) return;
    fprintf(stderr, "no locale %s\n", getenv("LC_ALL"));
    _Exit(3);
}
