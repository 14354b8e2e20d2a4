/* lab/measure/request_folder.c: which files of a folder are requests, in which order, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/measure/request_folder.h"
#include "scratch.h"

static scratch place;

static int make_place(void **state) {
    (void)state;
    return scratch_open(&place);
}

static int drop_place(void **state) {
    (void)state;
    scratch_close(&place);
    return 0;
}

static void requests_come_in_the_order_of_their_names(void **state) {
    (void)state;
    static const char *const names[] = {"10.msgpack", "02.msgpack", "note.txt", "1.msgpack", "x.msgpack.tmp",
                                        "z.msgpack"};
    static const char *const wanted[] = {"02.msgpack", "1.msgpack", "10.msgpack", "z.msgpack"};
    openpi_error error = OPENPI_ERROR_INIT;
    request_folder folder;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(scratch_write(&place, names[i], names[i], strlen(names[i])), 0);
    assert_int_equal(request_folder_open(place.folder, &folder, &error), OPENPI_OK);
    assert_int_equal(folder.count, 4);
    for (int i = 0; i < 4; i++) {
        char *bytes;
        size_t count;
        assert_int_equal(request_folder_read(&folder, i, &bytes, &count, &error), OPENPI_OK);
        assert_int_equal(count, strlen(wanted[i]));
        assert_string_equal(bytes, wanted[i]);
        free(bytes);
    }
    request_folder_close(&folder);
    assert_int_equal(request_folder_open(scratch_path(&place, "note.txt"), &folder, &error), OPENPI_OK);
    assert_int_equal(folder.count, 1);
    request_folder_close(&folder);
}

static void what_holds_no_request_is_refused(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    request_folder folder;
    assert_int_equal(request_folder_open(scratch_path(&place, "absent"), &folder, &error), OPENPI_NOT_FOUND);
    assert_non_null(strstr(error.message, "nothing of that name"));
    assert_int_equal(mkdir(scratch_path(&place, "empty"), 0700), 0);
    assert_int_equal(request_folder_open(scratch_path(&place, "empty"), &folder, &error), OPENPI_NOT_FOUND);
    assert_non_null(strstr(error.message, "no file ends in .msgpack"));
    assert_int_equal(folder.count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(requests_come_in_the_order_of_their_names, make_place, drop_place),
        cmocka_unit_test_setup_teardown(what_holds_no_request_is_refused, make_place, drop_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
