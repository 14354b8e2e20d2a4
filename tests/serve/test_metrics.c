/* labels: links=serve */
/* What the server counts, without a server: each number of the text against what was reported.
 *
 *   test_metrics --show       prints the text, for promtool (scripts/promtool.sh) */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#include "serve/admin/metrics.h"

static char *written(metrics *m, const metrics_now *now) {
    text out = {.data = NULL};
    metrics_counts counts = metrics_get(m);
    metrics_write(&counts, now, &out);
    assert_false(out.failed);
    return out.data;
}

/* The number of the sample with this name and these labels. */
static double sample(const char *text, const char *name) {
    size_t count = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, count) && line[count] == ' ') return strtod(line + count, NULL);
    }
    fail_msg("there is no sample %s in\n%s", name, text);
    return 0;
}

static void must_be(const char *text, const char *name, double expected) {
    double found = sample(text, name);
    if (fabs(found - expected) > 1e-9) fail_msg("%s is %.17g, expected %.17g", name, found, expected);
}

static void report(metrics *m, scheduler_class class, request_result result, const double *at_ms,
                   int rtc_delay) {
    const openpi_limited limited = {.changed = 3, .below_min = 1, .beyond_step = 70};
    metrics_request request = {.class = class,
                               .result = result,
                               .at_ms = at_ms,
                               .bytes = 450000,
                               .truncated = rtc_delay == 3,
                               .limited = rtc_delay == 3 ? &limited : NULL,
                               .rtc_delay = rtc_delay};
    metrics_add_request(m, &request);
}

static void shadows_are_counted(void **state) {
    (void)state;
    metrics m;
    metrics_now now = {.version = "1"};
    metrics_open(&m);
    metrics_add_shadow(&m, SHADOW_WITHIN, &(metrics_shadow){.02, .05, .5});
    metrics_add_shadow(&m, SHADOW_ABOVE, &(metrics_shadow){.3, 4, .25});
    for (int i = 0; i < 3; i++) metrics_add_shadow(&m, SHADOW_LEFT_OUT, NULL);
    metrics_add_shadow(&m, SHADOW_FAILED, NULL);
    char *text = written(&m, &now);
    must_be(text, "openpi_shadow_requests_total{result=\"within\"}", 1);
    must_be(text, "openpi_shadow_requests_total{result=\"above\"}", 1);
    must_be(text, "openpi_shadow_requests_total{result=\"left_out\"}", 3);
    must_be(text, "openpi_shadow_requests_total{result=\"failed\"}", 1);
    must_be(text, "openpi_shadow_rms_bucket{le=\"0.02\"}", 1);
    must_be(text, "openpi_shadow_rms_sum", .32);
    must_be(text, "openpi_shadow_max_bucket{le=\"+Inf\"}", 2);
    must_be(text, "openpi_shadow_max_sum", 4.05);
    must_be(text, "openpi_shadow_largest", .5);
    free(text);
    metrics_close(&m);
}

static void losses_are_counted(void **state) {
    (void)state;
    metrics m;
    metrics_now now = {.version = "1"};
    metrics_open(&m);
    metrics_add_lost(&m, (metrics_lost){5, 2, 0});
    metrics_add_lost(&m, (metrics_lost){0, 0, 3});
    metrics_add_lost(&m, (metrics_lost){1, 1, 0});
    char *text = written(&m, &now);
    must_be(text, "openpi_w8_clipped_total{group=\"ffn\"}", 6);
    must_be(text, "openpi_w8_clipped_rows_total{group=\"ffn\"}", 3);
    must_be(text, "openpi_w8_not_finite_total{group=\"ffn\"}", 3);
    free(text);
    metrics_close(&m);
}

static void some(metrics *m) {
    static const double whole[MOMENTS] = {1000, 1001, 1001.5, 1002, 1006, 1010, 1021, 1022};
    static const double refused[MOMENTS] = {1000, 1001, 1001.5, 1002, 1006, 0, 0, 1007};
    static const double slow[MOMENTS] = {1000, 1001, 1001, 1001, 1001, 1001, 4000, 4001};
    metrics_open(m);
    metrics_add_device(m, "cuda:0");
    metrics_add_device(m, "odd\"\\\nname");
    report(m, SCHEDULER_RESERVED, REQUEST_OK, whole, 3);
    report(m, SCHEDULER_RESERVED, REQUEST_OK, whole, 0);
    report(m, SCHEDULER_SHARED, REQUEST_REFUSED, refused, -1);
    report(m, SCHEDULER_SHARED, REQUEST_OK, slow, 60);
    metrics_add_batch(m, 0, 1, .011);
    metrics_add_batch(m, 1, 8, .07);
    metrics_add_rejected(m, REJECTED_ADDRESS);
    metrics_add_rejected(m, REJECTED_ATTEMPTS);
    metrics_add_rejected(m, REJECTED_ATTEMPTS);
    metrics_add_dropped(m, DROP_FRAMES);
    metrics_add_dropped(m, DROP_FRAMES);
    metrics_add_received(m, 5000000000u);
    metrics_add_received(m, 1);
    metrics_add_sent(m, 5743);
}

/* As a process may see it that has a limit of memory: one that no process of 64 bits reaches, because the
 * look itself opens files, and a sanitizer's process holds terabytes of addresses. */
static process look_limited(void) {
    struct rlimit before, most;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    most = before;
    most.rlim_cur = (rlim_t)1 << 47 < before.rlim_max ? (rlim_t)1 << 47 : before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_AS, &most), 0);
    process found = process_look();
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_true(found.max_virtual_bytes == most.rlim_cur);
    return found;
}

static metrics_now some_now(void) {
    return (metrics_now){.connections = 7,
                         .queued = {[SCHEDULER_SHARED] = 2, [SCHEDULER_RESERVED] = 1},
                         .process = look_limited(),
                         .version = "0.1.0",
                         .notes = 3,
                         .warnings = 2};
}

static void counts(void **state) {
    (void)state;
    metrics m;
    metrics_now now = some_now();
    some(&m);
    char *text = written(&m, &now);
    must_be(text, "openpi_requests_total{class=\"reserved\",result=\"ok\"}", 2);
    must_be(text, "openpi_requests_total{class=\"shared\",result=\"refused\"}", 1);
    must_be(text, "openpi_requests_total{class=\"shared\",result=\"ok\"}", 1);
    must_be(text, "openpi_requests_total{class=\"shared\",result=\"gone\"}", 0);
    must_be(text, "openpi_connections_rejected_total{reason=\"address\"}", 1);
    must_be(text, "openpi_connections_rejected_total{reason=\"attempts\"}", 2);
    must_be(text, "openpi_connections_rejected_total{reason=\"token\"}", 0);
    must_be(text, "openpi_connections_dropped_total{reason=\"frames\"}", 2);
    must_be(text, "openpi_connections_dropped_total{reason=\"descriptors\"}", 0);
    must_be(text, "openpi_connections_dropped_total{reason=\"ping\"}", 0);
    must_be(text, "openpi_received_bytes_total", 5000000001.0);
    must_be(text, "openpi_sent_bytes_total", 5743);
    must_be(text, "openpi_device_busy_seconds_total{device=\"cuda:0\"}", .011);
    must_be(text, "openpi_device_busy_seconds_total{device=\"odd\\\"\\\\ name\"}", .07);
    must_be(text, "openpi_queue_length{class=\"shared\"}", 2);
    must_be(text, "openpi_queue_length{class=\"reserved\"}", 1);
    must_be(text, "openpi_connections", 7);
    must_be(text, "openpi_build_info{version=\"0.1.0\"}", 1);
    must_be(text, "openpi_model_notes{level=\"note\"}", 3);
    must_be(text, "openpi_model_notes{level=\"warning\"}", 2);
    assert_true(sample(text, "process_resident_memory_bytes") > 1e5);
    assert_true(sample(text, "process_virtual_memory_bytes") > sample(text, "process_resident_memory_bytes"));
    must_be(text, "process_virtual_memory_max_bytes", (double)now.process.max_virtual_bytes);
    assert_true(sample(text, "process_open_fds") >= 3);
    assert_true(sample(text, "process_max_fds") >= sample(text, "process_open_fds"));
    assert_true(sample(text, "process_start_time_seconds") > 1.7e9);
    assert_true(sample(text, "process_cpu_seconds_total") >= 0);
    free(text);
    metrics_close(&m);
}

/* Buckets count what is at most their bound, all of them below as well. */
static void histograms(void **state) {
    (void)state;
    metrics m;
    metrics_now now = some_now();
    some(&m);
    char *text = written(&m, &now);
    must_be(text, "openpi_request_duration_seconds_bucket{le=\"0.005\"}", 0);
    must_be(text, "openpi_request_duration_seconds_bucket{le=\"0.0075\"}", 1);
    must_be(text, "openpi_request_duration_seconds_bucket{le=\"0.02\"}", 1);
    must_be(text, "openpi_request_duration_seconds_bucket{le=\"0.03\"}", 3);
    must_be(text, "openpi_request_duration_seconds_bucket{le=\"1\"}", 3);
    must_be(text, "openpi_request_duration_seconds_bucket{le=\"2\"}", 3);
    must_be(text, "openpi_request_duration_seconds_bucket{le=\"3\"}", 4);
    must_be(text, "openpi_request_duration_seconds_bucket{le=\"30\"}", 4);
    must_be(text, "openpi_request_duration_seconds_bucket{le=\"+Inf\"}", 4);
    must_be(text, "openpi_request_duration_seconds_count", 4);
    must_be(text, "openpi_request_duration_seconds_sum", .021 + .021 + .006 + 3);
    must_be(text, "openpi_queue_duration_seconds_count", 3);
    must_be(text, "openpi_queue_duration_seconds_sum", .008);
    must_be(text, "openpi_stage_duration_seconds_bucket{stage=\"receive\",le=\"0.001\"}", 4);
    must_be(text, "openpi_stage_duration_seconds_sum{stage=\"turn\"}", .0015);
    must_be(text, "openpi_stage_duration_seconds_sum{stage=\"prepare_wait\"}", .0015);
    must_be(text, "openpi_stage_duration_seconds_sum{stage=\"prepare\"}", .012);
    must_be(text, "openpi_stage_duration_seconds_count{stage=\"prepare\"}", 4);
    must_be(text, "openpi_stage_duration_seconds_sum{stage=\"run\"}", .011 + .011 + 2.999);
    must_be(text, "openpi_stage_duration_seconds_bucket{stage=\"run\",le=\"0.015\"}", 2);
    must_be(text, "openpi_stage_duration_seconds_count{stage=\"send\"}", 3);
    must_be(text, "openpi_batch_size_bucket{le=\"1\"}", 1);
    must_be(text, "openpi_batch_size_bucket{le=\"6\"}", 1);
    must_be(text, "openpi_batch_size_bucket{le=\"8\"}", 2);
    must_be(text, "openpi_batch_size_sum", 9);
    must_be(text, "openpi_message_bytes_bucket{le=\"400000\"}", 0);
    must_be(text, "openpi_message_bytes_bucket{le=\"500000\"}", 4);
    must_be(text, "openpi_rtc_delay_steps_bucket{le=\"0.5\"}", 1);
    must_be(text, "openpi_rtc_delay_steps_bucket{le=\"2\"}", 1);
    must_be(text, "openpi_rtc_delay_steps_bucket{le=\"3\"}", 2);
    must_be(text, "openpi_rtc_delay_steps_bucket{le=\"50\"}", 2);
    must_be(text, "openpi_rtc_delay_steps_count", 3);
    must_be(text, "openpi_prompts_truncated_total", 1);
    must_be(text, "openpi_replies_limited_total", 1);
    must_be(text, "openpi_numbers_beyond_limit_total{limit=\"min\"}", 1);
    must_be(text, "openpi_numbers_beyond_limit_total{limit=\"max\"}", 0);
    must_be(text, "openpi_numbers_beyond_limit_total{limit=\"max_step\"}", 70);
    must_be(text, "openpi_numbers_beyond_limit_total{limit=\"max_start_jump\"}", 0);
    free(text);
    metrics_close(&m);
}

/* Every sample is of a metric that HELP and TYPE have announced. */
static void every_metric_is_announced(void **state) {
    (void)state;
    metrics m;
    metrics_now now = some_now();
    some(&m);
    char *text = written(&m, &now), *rest = NULL, announced[100] = "", type[100] = "";
    int samples = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (!strncmp(line, "# HELP ", 7)) continue;
        if (sscanf(line, "# TYPE %99s %99s", announced, type) == 2) continue;
        size_t count = strlen(announced);
        assert_memory_equal(line, announced, count);
        int is_histogram = line[count] == '_';
        assert_int_equal(is_histogram, !strcmp(type, "histogram"));
        samples++;
    }
    assert_true(samples > 200);
    free(text);
    metrics_close(&m);
}

static void show(void) {
    metrics m;
    metrics_now now = some_now();
    some(&m);
    char *text = written(&m, &now);
    fputs(text, stdout);
    free(text);
    metrics_close(&m);
}

int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "--show")) {
        show();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(histograms),
        cmocka_unit_test(losses_are_counted), cmocka_unit_test(shadows_are_counted),
        cmocka_unit_test(every_metric_is_announced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
