/* labels: links=serve */
/* Looking for work that is about to come: how it ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "serve/small/alert.h"

static void it_ends(void **state) {
    (void)state;
    alert alert;
    alert_open(&alert);
    atomic_store(&alert.until, INT64_MAX);
    alert_look(&alert, 0);                 /* raised again and again: for a while only                     */
    alert_end(&alert);
    assert_int_equal(atomic_load(&alert.came), 1);
    alert_look(&alert, 0);                 /* work is there                                                */
    atomic_store(&alert.until, 0);
    alert_look(&alert, 1);                 /* the time is over                                             */
}

static void few_processors_never_look(void **state) {
    (void)state;
    alert alert;
    alert_open(&alert);
    alert.enough = 0;
    assert_int_equal(alert_raise(&alert), 0);
    assert_int_equal(atomic_load(&alert.until), 0);
    atomic_store(&alert.until, INT64_MAX);
    assert_int_equal(alert_is_on(&alert), 0);
    alert.enough = 1;
    assert_int_equal(alert_is_on(&alert), 1);
    assert_int_equal(alert_raise(&alert), 0);          /* whoever looks is awake                           */
    atomic_store(&alert.until, 0);
    assert_int_equal(alert_raise(&alert), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_ends),
        cmocka_unit_test(few_processors_never_look),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
