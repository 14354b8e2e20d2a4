/* What `openpi doctor` looks at: requests as they lie in a folder or a recording, seen through a policy with
 * statistics and limits, and judged. The input is several requests: two bytes with the length of each, then
 * the request; they may be no requests at all. Findings have a known check, finite numbers and sentences. */
#include <math.h>

#include "fuzz.h"
#include "lab/measure/doctor.h"

enum { REQUESTS = 16 };

typedef struct pieces {
    const uint8_t *at[REQUESTS];
    size_t bytes[REQUESTS];
    int count;
} pieces;

static openpi_policy *policy;

static void open_policy(void) {
    static openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    PROMISE(openpi_synthetic_parse("tiny", &synthetic, &error) == OPENPI_OK);
    options.synthetic = &synthetic;
    options.robot = "aloha_sim";
    options.norm_stats = GOLDEN "/policy/aloha_sim/norm_stats.json";
    options.tokenizer = GOLDEN "/tokenizer.model";
    PROMISE(openpi_policy_open(NULL, &options, &policy, &error) == OPENPI_OK);
}

static pieces cut(const uint8_t *data, size_t size) {
    pieces p = {.count = 0};
    while (size >= 2 && p.count < REQUESTS) {
        size_t bytes = (size_t)data[0] << 8 | data[1];
        data += 2, size -= 2;
        if (bytes > size) bytes = size;
        p.at[p.count] = data, p.bytes[p.count++] = bytes;
        data += bytes, size -= bytes;
    }
    return p;
}

static openpi_status read_piece(void *user, int index, char **bytes, size_t *count, openpi_error *error) {
    const pieces *p = user;
    (void)error;
    *count = p->bytes[index];
    *bytes = exact_copy(p->at[index], *count, 0);
    return OPENPI_OK;
}

static void check(const doctor_finding *f) {
    PROMISE(f->check && *f->check && *f->sentence && isfinite(f->number));
    PROMISE(memchr(f->sentence, 0, sizeof f->sentence) && memchr(f->advice, 0, sizeof f->advice));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static doctor doctor;
    openpi_error error = OPENPI_ERROR_INIT;
    request_folder folder;
    if (!policy) open_policy();
    pieces p = cut(data, size);
    if (!p.count) return 0;
    PROMISE(request_folder_over(read_piece, &p, "requests", p.count, &folder, &error) == OPENPI_OK);
    if (went_well(doctor_look(&doctor, policy, &folder, &error), &error)) {
        doctor_level worst = doctor_judge(&doctor);
        PROMISE(doctor.count + doctor.refused == p.count && doctor.findings_count <= DOCTOR_FINDINGS);
        PROMISE(doctor.findings_count == 0 || worst == doctor.findings[0].level);
        for (int i = 0; i < doctor.findings_count; i++) check(&doctor.findings[i]);
    }
    doctor_close(&doctor);
    request_folder_close(&folder);
    return 0;
}
