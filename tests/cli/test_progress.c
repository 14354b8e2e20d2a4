/* labels: threads links=cli */
/* What the progress bar says of how far the work is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/progress.h"

static void test_text(void **state) {
    static const struct { int bytes; uint64_t done, total; const char *text; } rows[] = {
        {0, 0, 0, "0 %"},
        {0, 31, 64, "48 %"},
        {0, UINT64_MAX / 4, UINT64_MAX / 2, "50 %"},
        {1, 0, 14470000000, "0 %, 0.0 of 14.5 GB"},
        {1, 6213000000, 14470000000, "43 %, 6.2 of 14.5 GB"},
        {1, 14470000000, 14470000000, "100 %, 14.5 of 14.5 GB"},
        {1, 1250000, 5000000, "25 %, 1.2 of 5.0 MB"},
        {1, 0, 0, "0 %, 0.0 of 0.0 MB"},
        {1, UINT64_MAX, UINT64_MAX, "100 %, 18446744073.7 of 18446744073.7 GB"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[PROGRESS_TEXT];
        assert_ptr_equal(progress_text(rows[i].bytes, rows[i].done, rows[i].total, text), text);
        assert_string_equal(text, rows[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
