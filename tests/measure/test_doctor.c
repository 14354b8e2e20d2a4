/* lab/measure/doctor: a healthy robot is told nothing wrong, and each thing that goes wrong on the way from a
 * robot to the model is found: by its check, as wrong or as a warning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "lab/measure/doctor.h"
#include "policy_golden.h"
#include "random_numbers.h"
#include "scratch.h"
#include "structs.h"

enum { NUMBERS = 3, REQUESTS = 12, SIDE = 16 };

/* How a robot is unwell. */
typedef enum fault {
    HEALTHY, DEGREES, STILL, SWAPPED, SHIFTED, BLACK, FROZEN, TWINS, LONG_PROMPT, REFUSED, UNNORMALISED, IDLE,
    TIGHT_LIMITS, IMPOSSIBLE_LIMITS, NO_LIMITS, FAR_ACTIONS, NOISY, BEYOND_DATA
} fault;

static scratch place;
static openpi_synthetic tiny = {.size = sizeof tiny, .seed = 7, .dims = OPENPI_DIMS_INIT};
static openpi_engine *engine;
static openpi_session *session;

static int open_model(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine_options machine = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    WORKS(openpi_dims_parse("tiny", &tiny.dims, &error));
    machine.synthetic = &tiny;
    machine.threads = 1;
    shape.horizon = 4, shape.steps = 1;
    WORKS(openpi_engine_open(NULL, &machine, &engine, &error));
    WORKS(openpi_session_create(engine, &shape, &session, &error));
    return 0;
}

static int close_model(void **state) {
    (void)state;
    openpi_session_close(session);
    openpi_engine_close(engine);
    return 0;
}

static int make_place(void **state) {
    (void)state;
    return scratch_open(&place);
}

static int drop_place(void **state) {
    (void)state;
    scratch_close(&place);
    return 0;
}

/* 0 … 1. */
static double part(void) { return next_random() / 4294967296.0; }

static void pack_picture(msgpack_packer *packer, const char *key, int dark) {
    static const int shape[3] = {SIDE, SIDE, 3};
    uint8_t picture[SIDE * SIDE * 3];
    for (size_t i = 0; i < sizeof picture; i++) picture[i] = dark ? 0 : (uint8_t)next_random();
    pack_text(packer, key);
    pack_array(packer, "|u1", shape, 3, picture, sizeof picture);
}

/* Two joints in 1 … 2 and -2 … -1 rad, a gripper in 0 … 1. */
static void pack_state(msgpack_packer *packer, fault fault) {
    static const int shape[1] = {NUMBERS};
    double state[NUMBERS] = {1 + part(), -2 + part(), part()}, unit = fault == DEGREES ? 180 / 3.14159 : 1;
    double swapped[NUMBERS] = {state[2], state[1], state[0]},
           shifted[NUMBERS] = {state[2], state[0], state[1]};
    for (int i = 0; i < 2; i++) state[i] *= unit;
    if (fault == STILL) state[1] = -1.5;
    pack_text(packer, "joints");
    pack_array(packer, "<f8", shape, 1, fault == SWAPPED ? swapped : fault == SHIFTED ? shifted : state,
               sizeof state);
}

static void write_request(fault fault, int number) {
    msgpack_sbuffer message;
    msgpack_packer packer;
    char name[32], prompt[1200] = "pick";
    uint64_t before;
    for (int i = 0; i < 200 && fault == LONG_PROMPT; i++) strcat(prompt, " cup");
    msgpack_sbuffer_init(&message);
    msgpack_packer_init(&packer, &message, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, 4);
    pack_state(&packer, fault);
    before = random_state;
    if (fault == FROZEN) random_state = 5;
    pack_picture(&packer, "front", fault == BLACK);
    random_state = fault == TWINS ? before : before + 12345;
    pack_picture(&packer, fault == REFUSED && number == 3 ? "wirst" : "wrist", 0);
    pack_text(&packer, "prompt");
    pack_text(&packer, prompt);
    snprintf(name, sizeof name, "%03d.msgpack", number);
    assert_int_equal(scratch_write(&place, name, message.data, message.size), 0);
    msgpack_sbuffer_destroy(&message);
}

static void write_files(fault fault) {
    static const char numbers[] = "{\"mean\": [%s], \"std\": [%s], \"q01\": [%s], \"q99\": [%s]}";
    char state[300], text[800];
    snprintf(state, sizeof state, numbers, "1.5, -1.5, 0.5", "0.3, 0.3, 0.3", "1, -2, 0", "2, -1, 1");
    if (fault == IDLE) snprintf(state, sizeof state, numbers, "0, 0, 0", "1, 1, 1", "-1, -1, -1", "1, 1, 1");
    snprintf(text, sizeof text, "{\"norm_stats\": {\"state\": %s, \"actions\": %s}}", state, state);
    assert_int_equal(scratch_write(&place, "norm_stats.json", text, strlen(text)), 0);
    random_state = 7;
    for (int i = 0; i < REQUESTS; i++) write_request(fault, i);
}

static void record_of(fault fault, char *text, size_t bytes) {
    static const char wide[] = ", \"limits\": {\"max\": [99, 99, 99]}",
                      tight[] = ", \"limits\": {\"max_step\": [1e-6, 1e-6, 1e-6]}",
                      impossible[] = ", \"limits\": {\"max\": [-9, 9, 9], "
                                     "\"max_start_jump\": [1, null, null]}";
    snprintf(text, bytes,
             "{\"name\": \"arm\", \"cameras\": {\"front\": \"base\", \"wrist\": \"left_wrist\"}, "
             "\"state\": {\"joints\": 3}, \"actions\": 3, \"starts\": %s, \"normalization\": \"%s\"%s}",
             fault == FAR_ACTIONS || fault == IMPOSSIBLE_LIMITS ? "[0, 1, 2]" : "[null, null, null]",
             fault == UNNORMALISED ? "none" : "quantile",
             fault == NO_LIMITS           ? ""
             : fault == TIGHT_LIMITS      ? tight
             : fault == IMPOSSIBLE_LIMITS ? impossible
                                          : wide);
}

static void examine(fault fault, doctor *doctor) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    request_folder folder;
    char record[600], stats[500];
    write_files(fault);
    record_of(fault, record, sizeof record);
    snprintf(stats, sizeof stats, "%s/norm_stats.json", place.folder);
    options.synthetic = &tiny;
    options.robot = record;
    if (fault != UNNORMALISED) options.norm_stats = stats;
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    WORKS(request_folder_open(place.folder, &folder, &error));
    WORKS(doctor_look(doctor, policy, &folder, &error));
    WORKS(doctor_ask(doctor, session, &folder, 2, 2, &error));
    assert_int_equal(policy->robot.limits.count, doctor->limits.count);
    if (fault == FAR_ACTIONS)
        doctor->jump[1] = 3, doctor->step[1] = 0.01, doctor->most[1] = doctor->least[1] + 1;
    if (fault == NOISY) doctor->spread[2] = 0.9;
    if (fault == BEYOND_DATA) doctor->outside = 0.1;
    doctor_judge(doctor);
    request_folder_close(&folder);
    openpi_policy_close(policy);
    doctor->policy = NULL;
}

static const doctor_finding *find(const doctor *doctor, doctor_level level, const char *check,
                                  const char *part_of_it) {
    for (int i = 0; i < doctor->findings_count; i++) {
        const doctor_finding *f = &doctor->findings[i];
        if (f->level == level && !strcmp(f->check, check) && strstr(f->sentence, part_of_it)) return f;
    }
    return NULL;
}

static void each_fault_is_found(void **state) {
    (void)state;
    static const struct {
        fault fault;
        doctor_level level;
        const char *check, *part;
    } cases[] = {
        {DEGREES, DOCTOR_WRONG, "state range", "state 0 (joints 0) is "},
        {STILL, DOCTOR_WARNING, "state movement", "state 1 (joints 1) never moves: it is -1.5"},
        {SWAPPED, DOCTOR_WRONG, "order", "state 0 (joints 0) and state 2 (joints 2) look swapped"},
        {SHIFTED, DOCTOR_WRONG, "order", "the state looks shifted by 2"},
        {BLACK, DOCTOR_WRONG, "camera", "camera front is black in 100 %"},
        {FROZEN, DOCTOR_WRONG, "camera", "camera front is frozen: 12 pictures in a row"},
        {TWINS, DOCTOR_WRONG, "camera", "cameras front and wrist have the same picture in 12 of 12"},
        {LONG_PROMPT, DOCTOR_WARNING, "prompt", "the prompt is longer than 48 tokens in 12 of 12"},
        {REFUSED, DOCTOR_WRONG, "request", "1 of 12 requests are refused, the first is "},
        {UNNORMALISED, DOCTOR_WARNING, "normalisation", "the state is not normalised"},
        {IDLE, DOCTOR_WARNING, "normalisation", "normalising changes nothing"},
        {TIGHT_LIMITS, DOCTOR_WRONG, "limits", "of the actions' numbers are beyond a limit: 0 below min"},
        {IMPOSSIBLE_LIMITS, DOCTOR_WRONG, "limits", "of 2 of 2 chunks nothing may be sent: action 0 of step 0"},
        {NO_LIMITS, DOCTOR_WARNING, "limits", "the robot has no limits"},
        {FAR_ACTIONS, DOCTOR_WRONG, "first action", "action 1 begins 3 away from the measured state, 300 times"},
        {NOISY, DOCTOR_WARNING, "noise", "action 2 most, by 90.0 %"},
        {BEYOND_DATA, DOCTOR_WRONG, "action range", "10.0 % of the model's numbers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        doctor doctor;
        examine(cases[i].fault, &doctor);
        if (!find(&doctor, cases[i].level, cases[i].check, cases[i].part))
            fail_msg("fault %d: \"%s\" is not found; the first of %d is %s: %s", (int)cases[i].fault,
                     cases[i].part, doctor.findings_count, doctor.findings[0].check,
                     doctor.findings[0].sentence);
        for (int k = 1; k < doctor.findings_count; k++)
            assert_true(doctor.findings[k].level <= doctor.findings[k - 1].level);
        doctor_close(&doctor);
    }
}

static void a_healthy_robot_is_told_nothing_wrong(void **state) {
    (void)state;
    doctor doctor;
    examine(HEALTHY, &doctor);
    for (int i = 0; i < doctor.findings_count; i++)
        if (doctor.findings[i].level == DOCTOR_WRONG) fail_msg("%s", doctor.findings[i].sentence);
    assert_non_null(find(&doctor, DOCTOR_FINE, "camera", "camera front is live"));
    assert_non_null(find(&doctor, DOCTOR_FINE, "camera", "camera wrist is live"));
    assert_non_null(find(&doctor, DOCTOR_FINE, "limits", "no action of 2 chunks is beyond a limit"));
    assert_int_equal(doctor.count, REQUESTS);
    assert_int_equal(doctor.chunks, 2);
    doctor_close(&doctor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_healthy_robot_is_told_nothing_wrong, make_place, drop_place),
        cmocka_unit_test_setup_teardown(each_fault_is_found, make_place, drop_place),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
