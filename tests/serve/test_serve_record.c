/* labels: server threads */
/* --record: what robots saw and were told, and `openpi replay`, which gives the same to the bit: with noise
 * of the server's seed and the robot's own, real-time chunking, several robots, refusals, a reload. A disk
 * that takes nothing makes no robot wait; what is too old goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "robot_message.h"

#define MODEL "--synthetic tiny --robot aloha_sim --norm-stats '" GOLDEN                              \
              "/policy/aloha_sim/norm_stats.json' --tokenizer '" GOLDEN                                \
              "/tokenizer.model' --threads 2 --steps 2 --horizon 6"

enum { H = 6 };

/* 0 plain, 1 with noise of its own, 2 as a chunk that follows on. Returns the reply's opcode. */
static int ask_once(int fd, int kind) {
    float noise[H * OPENPI_ACTION_DIM];
    msgpack_sbuffer message;
    load_request("aloha_sim", &message);
    openpi_noise(3, 4, noise, H * OPENPI_ACTION_DIM);
    if (kind == 1) add_noise(&message, noise, H);
    if (kind == 2) add_following(&message, 2);
    ws_frame frame = ask(fd, &message);
    int opcode = frame.opcode;
    free(frame.data);
    msgpack_sbuffer_destroy(&message);
    return opcode;
}

static void ask_wrongly(int fd) {
    ws_send(fd, WS_BINARY, 1, "\x81\xa5state\xc0", 8);
    ws_frame frame = ws_receive(fd);
    assert_int_equal(frame.opcode, WS_TEXT);
    free(frame.data);
}

/* Files in the folder, and the name of the last one in order. */
static int count_files(const char *folder, char last[256]) {
    DIR *list = opendir(scratch_path(&box, folder));
    const struct dirent *entry;
    int count = 0;
    last[0] = 0;
    assert_non_null(list);
    while ((entry = readdir(list))) {
        if (entry->d_name[0] == '.') continue;
        count++;
        if (strcmp(entry->d_name, last) > 0) snprintf(last, 256, "%s", entry->d_name);
    }
    closedir(list);
    return count;
}

static void the_same_again(void **state) {
    (void)state;
    static const int kinds[] = {0, 2, 1, 2, 2};
    served server;
    char last[256];
    served_start(&server, &box, MODEL " --seed 11 --record '%s/logs'", box.folder);
    int a = greet(server.port), b = greet(server.port);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        assert_int_equal(ask_once(a, kinds[i]), WS_BINARY);
        assert_int_equal(ask_once(b, kinds[4 - i]), WS_BINARY);
    }
    ask_wrongly(a);
    kill(server.pid, SIGHUP);              /* a reload: from there on another file                    */
    for (int i = 0; i < 6000; i++) {
        char *text = served_log(&server);
        int over = strstr(text, "reloaded") != NULL;
        free(text);
        if (over) break;
        served_sleep(10);
    }
    assert_int_equal(ask_once(a, 2), WS_BINARY);
    close(a);
    close(b);
    served_stop(&server);
    int files = count_files("logs", last);
    assert_true(files >= 2 && files <= 3);           /* an hour may have ended meanwhile              */
    int calls = 0, refused = 0;
    DIR *list = opendir(scratch_path(&box, "logs"));
    for (const struct dirent *entry; (entry = readdir(list));) {
        int equal, of, no;
        if (entry->d_name[0] == '.') continue;
        assert_int_equal(run("replay logs/%s " MODEL, entry->d_name), 0);
        if (sscanf(out, "%d calls: %d equal to the bit, 0 not; %d requests", &of, &equal, &no) != 3)
            fail_msg("%s", out);
        assert_int_equal(of, equal);
        calls += of;
        refused += no;
    }
    closedir(list);
    assert_int_equal(calls, 11);
    assert_int_equal(refused, 1);
    assert_int_equal(run("replay logs/%s --synthetic tiny:pi0:8 " MODEL, last), 2);
}

/* Another model's actions differ, and the place is said. */
static void what_differs_is_said(void **state) {
    (void)state;
    char last[256];
    count_files("logs", last);
    int end = run("replay logs/%s --synthetic tiny:pi0:8 --json diff.json --robot aloha_sim --norm-stats '"
                  GOLDEN "/policy/aloha_sim/norm_stats.json' --tokenizer '" GOLDEN
                  "/tokenizer.model' --threads 2 --first 1", last);
    assert_int_equal(end, 1);
    must_contain(out, "1 calls: 0 equal to the bit, 1 not");
    must_contain(out, "other weights: the recording is of checkpoint ");
    must_contain(out, "the robot's ");
    free(slurp(scratch_path(&box, "diff.json"), NULL));
}

/* A recording is what `openpi doctor` looks at, with the robot that was served. */
static void a_doctor_looks_at_it(void **state) {
    (void)state;
    char last[256];
    int files = count_files("logs", last);           /* two, or three where an hour ended meanwhile        */
    assert_int_equal(run("doctor --synthetic tiny --norm-stats '" GOLDEN
                         "/policy/aloha_sim/norm_stats.json' --tokenizer '" GOLDEN
                         "/tokenizer.model' --threads 2 --chunks 1 --seeds 2 --steps 1 --recording "
                         "logs/%s", last), 1);
    must_contain(out, "requests of robot aloha_sim, 1 answers of the model from 2 noises each");
    must_contain(out, "camera images/cam_high is frozen: ");
    if (files == 2) must_contain(out, "frozen: 10 pictures in a row are the same");
    assert_int_equal(run("doctor --synthetic tiny --recording logs/%s --observations logs", last), 2);
    assert_int_equal(run("doctor --synthetic tiny --recording absent"), 2);
}

#define STATISTICS(name) " --norm-stats '" GOLDEN "/policy/" name "/norm_stats.json'"
#define TOKENIZER " --tokenizer '" GOLDEN "/tokenizer.model' --threads 2"

static void record_two(const char *dtype, char last[256]) {
    served server;
    served_start(&server, &box,
                 "'%s/ck' --robot aloha_sim --steps 2 --horizon 6 --seed 11 --dtype %s" TOKENIZER
                 STATISTICS("aloha_sim") " --record '%s/%s'", box.folder, dtype, box.folder, dtype);
    int fd = greet(server.port);
    assert_int_equal(ask_once(fd, 0), WS_BINARY);
    ask_wrongly(fd);
    assert_int_equal(ask_once(fd, 2), WS_BINARY);
    close(fd);
    served_stop(&server);
    count_files(dtype, last);
}

/* And what `openpi verify` judges by: the same model is within its bounds, in both types; another state is
 * not, and other weights or another format of them are told. */
static void a_golden_of_it(void **state) {
    (void)state;
    char last[256];
    assert_int_equal(run("synth ck --preset tiny --variant pi0 --seed 7"), 0);
    assert_int_equal(run("synth other --preset tiny --variant pi0 --seed 8"), 0);
    record_two("bf16", last);
    assert_int_equal(run("verify --checkpoint ck bf16/%s" TOKENIZER STATISTICS("aloha_sim"), last), 0);
    must_contain(out, "2 ok, 0 FAIL, 0 skipped");
    assert_int_equal(run("verify --checkpoint ck bf16/%s" TOKENIZER STATISTICS("aloha_pi05"), last), 1);
    must_contain(out, "1 ok, 1 FAIL, 0 skipped");
    must_contain(out, "FAIL: recorded actions from f32 here: ");
    assert_int_equal(run("verify --checkpoint other bf16/%s" TOKENIZER STATISTICS("aloha_sim"), last), 1);
    must_contain(out, "FAIL: recorded from other weights: their hash is ");
    assert_int_equal(run("verify --checkpoint ck bf16/%s --weights ffn=int8" TOKENIZER
                         STATISTICS("aloha_sim"), last), 0);
    must_contain(out, "0 ok, 0 FAIL, 2 skipped");
    assert_int_equal(run("verify bf16/%s", last), 2);
    must_contain(err, "recorded from a checkpoint of its own: give --checkpoint DIR");
    record_two("f32", last);
    assert_int_equal(run("verify --checkpoint ck f32/%s" TOKENIZER STATISTICS("aloha_sim"), last), 0);
    must_contain(out, "1 ok, 0 FAIL, 1 skipped");
    assert_int_equal(run("verify --checkpoint ck f32/%s --dtype f32" TOKENIZER STATISTICS("aloha_pi05"),
                         last), 1);
    must_contain(out, "FAIL: actions: element ");
}

/* No file may grow beyond 64 kB: no robot notices, and the log says once why nothing is recorded. */
static void a_full_disk(void **state) {
    (void)state;
    served server;
    char script[800];
    int length = snprintf(script, sizeof script, "#!/bin/sh\nulimit -f 128\nexec '%s' \"$@\"\n",
                          served_command());
    assert_int_equal(scratch_write(&box, "limited", script, (size_t)length), 0);
    assert_int_equal(chmod(scratch_path(&box, "limited"), 0700), 0);
    snprintf(script, sizeof script, "%s", scratch_path(&box, "limited"));
    served_instead = script;
    served_start(&server, &box, MODEL " --record '%s/full' --admin 127.0.0.1:0", box.folder);
    served_instead = NULL;
    int fd = greet(server.port);
    for (int i = 0; i < 3; i++) assert_int_equal(ask_once(fd, 0), WS_BINARY);
    close(fd);
    served_stop(&server);
    served_must_log(&server, "requests are not recorded for 5 seconds");
    served_must_log(&server, "File too large");
}

/* Old recordings go, oldest first; the current one and other files stay. */
static void old_ones_go(void **state) {
    (void)state;
    served server;
    char last[256];
    static char old[300000];
    assert_int_equal(mkdir(scratch_path(&box, "old"), 0700), 0);
    static const char *const names[] = {"old/2020-01-01T00.mcap", "old/2020-01-01T00-2.mcap",
                                        "old/2020-01-01T00-10.mcap", "old/notes.mcap"};
    for (size_t i = 0; i < 4; i++) assert_int_equal(scratch_write(&box, names[i], old, sizeof old), 0);
    served_start(&server, &box, MODEL " --record '%s/old' --record-max 700kB", box.folder);
    int fd = greet(server.port);
    assert_int_equal(ask_once(fd, 0), WS_BINARY);
    close(fd);
    served_stop(&server);
    served_must_log(&server, "of the oldest recordings are removed");
    assert_int_equal(count_files("old", last), 4);   /* two old ones, the notes, the new one          */
    struct stat about;
    assert_int_equal(stat(scratch_path(&box, "old/2020-01-01T00.mcap"), &about), -1);
    assert_int_equal(stat(scratch_path(&box, "old/2020-01-01T00-10.mcap"), &about), 0);
    assert_int_equal(stat(scratch_path(&box, "old/notes.mcap"), &about), 0);
}

static void refused_at_once(void **state) {
    (void)state;
    assert_int_equal(scratch_write(&box, "file", "x", 1), 0);
    must_refuse("serve " MODEL " --port 0 --no-admin --record file", "--record file: is no folder");
    must_refuse("serve " MODEL " --port 0 --no-admin --record none/there", "the folder cannot be made");
    must_refuse("serve " MODEL " --port 0 --no-admin --record-max 1GB", "--record-max is of --record");
    must_refuse("replay file " MODEL, "file: does not begin as an MCAP file does");
    must_refuse("replay none.mcap " MODEL, "none.mcap: cannot be read");
}

static int set_up(void **state) { return open_box(state); }

static int tear_down(void **state) {
    int end = close_box(state);
    out = err = NULL;
    return end;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_again), cmocka_unit_test(what_differs_is_said),
        cmocka_unit_test(a_doctor_looks_at_it), cmocka_unit_test(a_golden_of_it),
        cmocka_unit_test(a_full_disk), cmocka_unit_test(old_ones_go), cmocka_unit_test(refused_at_once),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
