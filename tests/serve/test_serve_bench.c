/* labels: long server flood no_asan */
/* openpi bench --server against `openpi serve`: what robots count, also beside trouble-makers (flood.c), and
 * the sentences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "scratch.h"
#include "command.h"
#include "served.h"

static json_t *read_result(void) {
    json_error_t why;
    json_t *root = json_load_file(scratch_path(&box, "result.json"), 0, &why);
    if (!root) fail_msg("result.json:%d: %s", why.line, why.text);
    assert_string_equal(json_string_value(json_object_get(root, "kind")), "server_bench");
    return root;
}

static const json_t *group(const json_t *root, size_t place, const char *name) {
    const json_t *found = json_array_get(json_object_get(root, "groups"), place);
    assert_non_null(found);
    assert_string_equal(json_string_value(json_object_get(found, "name")), name);
    return found;
}

/* Answered, and nothing went wrong. */
static void check_group(const json_t *g, int robots) {
    const json_t *round = json_object_get(g, "round_trip"), *model = json_object_get(g, "model");
    const json_t *beside = json_object_get(g, "beside_model");
    assert_true(number(g, "robots") == robots);
    assert_true(number(g, "answers") >= 1);
    assert_true(number(g, "answers_per_s") > 0);
    assert_true(number(g, "least_answers") * robots <= number(g, "answers"));
    assert_true(number(g, "most_answers") * robots >= number(g, "answers"));
    assert_true(number(g, "errors") == 0 && number(g, "broken") == 0 && number(g, "refused") == 0);
    assert_true(number(model, "p50_ms") > 0);
    assert_true(number(round, "max_ms") > number(model, "p50_ms"));
    assert_true(number(round, "p50_ms") <= number(round, "p99_ms"));
    assert_true(number(round, "p99_ms") <= number(round, "max_ms"));
    assert_true(number(beside, "p50_ms") > 0);
    assert_true(number(beside, "p50_ms") < number(round, "max_ms"));
}

/* The requests are those of openpi's own examples and of three pictures in the model's own space: so many
 * bytes did openpi-client send for each. */
static void robots_are_those_of_openpi_s_examples(void **state) {
    static const struct {
        const char *robot;
        int bytes, actions, horizon;       /* horizon: of openpi's config for π0 and that robot */
    } envs[] = {{"aloha", 602550, 14, 50}, {"droid", 301447, 8, 10}, {"libero", 301344, 7, 50},
                {"none", 452089, 32, 50}};
    (void)state;
    for (size_t i = 0; i < sizeof envs / sizeof *envs; i++) {
        served server;
        served_start(&server, &box, "--synthetic tiny --robot %s", envs[i].robot);
        int end = run("bench --server ws://127.0.0.1:%d --robots 2 --rate 0 --greedy 1 --seconds 1 "
                      "--json result.json", server.port);
        assert_int_equal(end, 0);
        json_t *root = read_result();
        const json_t *about = json_object_get(root, "server");
        assert_string_equal(json_string_value(json_object_get(root, "env")), envs[i].robot);
        assert_true(number(root, "request_bytes") == envs[i].bytes);
        assert_true(number(about, "action_dim") == envs[i].actions);
        assert_true(number(about, "horizon") == envs[i].horizon);
        assert_true(number(root, "seconds") >= 1);
        check_group(group(root, 0, "robots"), 2);
        check_group(group(root, 1, "greedy"), 1);
        json_decref(root);
        must_contain(out, envs[i].robot);
        must_contain(out, "greedy");
        served_stop(&server);
    }
}

/* A robot with a rate asks no more often than that. Messages of several observations, longer than a frame. */
static void a_rate_is_kept(void **state) {
    served server;
    (void)state;
    served_start(&server, &box, "--synthetic tiny --robot droid");
    assert_int_equal(run("bench --server ws://localhost:%d/any/path --robots 2 --rate 1.5 --jitter 20 "
                         "--seconds 4 --json result.json", server.port), 0);
    json_t *root = read_result();
    const json_t *robots = group(root, 0, "robots");
    check_group(robots, 2);
    assert_true(number(robots, "answers") <= 2 * (1.5 * number(root, "seconds") + 2));
    assert_true(number(robots, "rate_hz") == 1.5 && number(robots, "jitter_ms") == 20);
    json_decref(root);
    assert_int_equal(run("bench --server ws://127.0.0.1:%d --rate 0 --observations 3 --seconds 1 "
                         "--json result.json", server.port), 0);
    root = read_result();
    check_group(group(root, 0, "robots"), 1);
    assert_true(number(root, "observations") == 3 && number(root, "samples_per_s") > 0);
    json_decref(root);
    must_contain(out, "3 observations a message: ");
    served_stop(&server);
}

/* Robots and greedy clients have a key each, without which nobody connects. */
static void each_group_has_its_key(void **state) {
    static const char tokens[] = "arm shared - ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n"
                                 "desk shared - 248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1\n";
    static const char greedy_key[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    served server;
    (void)state;
    scratch_write(&box, "tokens", tokens, sizeof tokens - 1);
    served_start(&server, &box, "--synthetic tiny --robot none --horizon 5 --steps 1 --tokens '%s'",
                 scratch_path(&box, "tokens"));
    assert_int_equal(run("bench --server ws://127.0.0.1:%d --rate 1 --api-key abc --greedy 2 --greedy-key %s "
                         "--seconds 2 --json result.json", server.port, greedy_key), 0);
    json_t *root = read_result();
    check_group(group(root, 0, "robots"), 1);
    check_group(group(root, 1, "greedy"), 2);
    json_decref(root);
    char *log = served_log(&server);
    must_contain(log, "arm #");
    must_contain(log, "desk #");
    free(log);
    assert_int_equal(run("bench --server ws://127.0.0.1:%d --api-key abc --greedy 1 --seconds 1",
                         server.port), 1);
    served_stop(&server);
}

/* A request that does not fit is answered with a sentence, and the connection lives on. */
static void errors_are_counted_and_shown(void **state) {
    served server;
    (void)state;
    served_start(&server, &box, "--synthetic tiny --robot aloha");
    assert_int_equal(run("bench --server ws://127.0.0.1:%d --rate 0 --env droid --seconds 1 "
                         "--json result.json", server.port), 1);
    json_t *root = read_result();
    const json_t *robots = group(root, 0, "robots");
    assert_true(number(robots, "errors") > 1);
    assert_true(number(robots, "answers") == 0 && number(robots, "broken") == 0);
    must_contain(out, "last error of the robots: ");
    must_contain(out, "images");
    json_decref(root);
    served_stop(&server);
}

/* ---- trouble-makers ------------------------------------------------------------------------------- */

static pid_t flood_start(const served *server, const char *options) {
    char line[4096];
    snprintf(line, sizeof line, "exec '%s' ws://127.0.0.1:%d %s >'%s' 2>&1", OPENPI_FLOOD, server->port,
             options, scratch_path(&box, "flood"));
    pid_t flood = fork();
    assert_true(flood >= 0);
    if (flood) return flood;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

/* What it printed, to be freed. */
static char *flood_stop(pid_t flood) {
    int status;
    kill(flood, SIGTERM);
    assert_int_equal(waitpid(flood, &status, 0), flood);
    char *said = slurp(scratch_path(&box, "flood"), NULL);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("openpi_flood: %s", said);
    return said;
}

/* Trouble of every kind arrives, and no robot notices. */
static void trouble_makers_do_what_they_are_called(void **state) {
    enum { KINDS = 7, EACH = 2 };
    static const char *const kinds[KINDS] = {"idle", "half-open", "slow head", "slow writer",
                                             "no reader", "reconnect", "broken frames"};
    served server;
    (void)state;
    served_start(&server, &box, "--synthetic tiny --robot droid");
    pid_t flood = flood_start(&server, "--clients 14");
    assert_int_equal(run("bench --server ws://127.0.0.1:%d --robots 2 --rate 0 --seconds 3 "
                         "--json result.json", server.port), 0);
    char *said = flood_stop(flood);
    json_t *root = read_result();
    check_group(group(root, 0, "robots"), 2);
    json_decref(root);
    for (size_t i = 0; i < KINDS; i++) {
        int clients;
        long connected, refused, ended;
        char name[32];
        snprintf(name, sizeof name, "\n%s ", kinds[i]);
        const char *row = strstr(said, name);
        if (!row) fail_msg("no %s in:\n%s", kinds[i], said);
        row += strlen(name);
        assert_int_equal(sscanf(row, "%d %ld %ld %ld", &clients, &connected, &refused, &ended), 4);
        assert_true(clients == EACH && connected >= EACH);
        if (!strcmp(kinds[i], "reconnect")) assert_true(connected > 2 * EACH);
        if (!strcmp(kinds[i], "broken frames")) assert_true(ended >= EACH && connected > EACH);
        if (!strcmp(kinds[i], "idle") || !strcmp(kinds[i], "no reader")) assert_true(ended == 0);
    }
    free(said);
    served_stop(&server);
}

/* Addresses of their own have limits of their own: what trouble-makers take of it, no robot lacks. */
static void trouble_makers_have_addresses(void **state) {
    enum { ADDRESSES = 2, MOST = 3 };      /* 14 trouble-makers an address                                  */
    served server;
    (void)state;
    served_start(&server, &box, "--synthetic tiny --robot droid --max-per-address %d", MOST);
    pid_t flood = flood_start(&server, "--clients 28 --addresses 2");
    assert_int_equal(run("bench --server ws://127.0.0.1:%d --robots %d --rate 0 --seconds 1 "
                         "--json result.json", server.port, MOST), 0);
    free(flood_stop(flood));
    json_t *root = read_result();
    check_group(group(root, 0, "robots"), MOST);
    json_decref(root);
    char *log = served_log(&server), text[32];
    for (int i = 1; i <= ADDRESSES + 1; i++) {
        snprintf(text, sizeof text, " 127.0.1.%d refused", i);
        if (i <= ADDRESSES) must_contain(log, text);
        else assert_null(strstr(log, text));
    }
    assert_null(strstr(log, " 127.0.0.1 refused"));
    free(log);
    served_stop(&server);
}

static void trouble_makers_want_their_words(void **state) {
    static const struct {
        const char *words, *sentence;
    } cases[] = {
        {"", "'', expected ws://HOST:PORT [--clients N]"},
        {"wss://127.0.0.1:1", "'wss://127.0.0.1:1', expected ws://HOST:PORT"},
        {"ws://127.0.0.1:1 --clients", "--clients is '', expected a number from 1 to 100000"},
        {"ws://127.0.0.1:1 --addresses 251", "--addresses is '251', expected a number from 1 to 250"},
        {"ws://127.0.0.1:1 --flood 3", "there is no option --flood"},
        {"ws://[::1]:1 --addresses 2", "--addresses only reach a server on 127.0.0.1, and this one is on ::1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[4096];
        snprintf(line, sizeof line, "'%s' %s 2>'%s'", OPENPI_FLOOD, cases[i].words,
                 scratch_path(&box, "flood"));
        int status = system(line);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
        char *said = slurp(scratch_path(&box, "flood"), NULL);
        must_contain(said, cases[i].sentence);
        free(said);
    }
}

/* A server that goes away is noticed by every robot. */
static void a_server_that_ends_is_noticed(void **state) {
    served server;
    char line[4096];
    int status;
    (void)state;
    served_start(&server, &box, "--synthetic tiny --robot droid");
    snprintf(line, sizeof line,
             "exec '%s' bench --server ws://127.0.0.1:%d --robots 3 --rate 0 --seconds 10 --json '%s' "
             ">/dev/null 2>&1", served_command(), server.port, scratch_path(&box, "result.json"));
    pid_t bench = fork();
    assert_true(bench >= 0);
    if (!bench) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    for (int connected = 0; connected < 3; served_sleep(10)) {
        char *log = served_log(&server);
        connected = 0;
        for (const char *at = log; (at = strstr(at, " connected\n")); at++) connected++;
        free(log);
    }
    served_sleep(1000);
    kill(server.pid, SIGKILL);
    served_wait(&server);
    assert_int_equal(waitpid(bench, &status, 0), bench);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    json_t *root = read_result();
    assert_true(number(group(root, 0, "robots"), "broken") == 3);
    json_decref(root);
}

static void mistakes_get_a_sentence(void **state) {
    static const struct {
        const char *args, *sentence;
    } cases[] = {
        {"--server http://127.0.0.1:8000", "--server is 'http://127.0.0.1:8000', expected ws://HOST:PORT or wss://HOST"},
        {"--server ws://", "expected ws://HOST:PORT"},
        {"--server ws://host:0", "expected ws://HOST:PORT"},
        {"--server ws://host:70000", "expected ws://HOST:PORT"},
        {"--server ws://host:80x", "expected ws://HOST:PORT"},
        {"--server ws://[::1", "expected ws://HOST:PORT"},
        {"--server ws://127.0.0.1:1", "127.0.0.1, port 1: no server answers there"},
        {"--server ws://[::1]:1/path", "::1, port 1: no server answers there"},
        {"--server ws://no-such-host.invalid", "no-such-host.invalid, port 80: there is no such host"},
        {"--server ws://127.0.0.1:1 --rate fast", "--rate is 'fast', expected calls a second from 0"},
        {"--server ws://127.0.0.1:1 --rate -1", "--rate is '-1', expected calls a second from 0"},
        {"--server ws://127.0.0.1:1 --device cpu", "--device and --server contradict each other"},
        {"--server ws://127.0.0.1:1 model.safetensors", "the server has its own model and device"},
        {"--robots 3", "are about a running server; expected --server ws://HOST:PORT"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(run("bench %s", cases[i].args), 2);
        must_contain(err, cases[i].sentence);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(robots_are_those_of_openpi_s_examples, open_box, close_box),
        cmocka_unit_test_setup_teardown(a_rate_is_kept, open_box, close_box),
        cmocka_unit_test_setup_teardown(each_group_has_its_key, open_box, close_box),
        cmocka_unit_test_setup_teardown(errors_are_counted_and_shown, open_box, close_box),
        cmocka_unit_test_setup_teardown(trouble_makers_do_what_they_are_called, open_box, close_box),
        cmocka_unit_test_setup_teardown(trouble_makers_have_addresses, open_box, close_box),
        cmocka_unit_test_setup_teardown(trouble_makers_want_their_words, open_box, close_box),
        cmocka_unit_test_setup_teardown(a_server_that_ends_is_noticed, open_box, close_box),
        cmocka_unit_test_setup_teardown(mistakes_get_a_sentence, open_box, close_box),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
