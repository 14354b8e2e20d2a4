/* See doctor.h: what was seen -> findings.
 *
 * Note: a finding is wrong where it would move the arm wrongly and one number says so; a warning where a
 * healthy robot could look the same, such as a joint that a task does not move. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "lab/measure/doctor.h"
#include "policy/cameras.h"

enum { FEW = 3 };                /* requests from which on "never" means something                         */

/* Spans beyond q01 … q99 from which on a state is far outside; the part of the requests that is too many. */
#define FAR 0.5
#define MANY 0.1

__attribute__((format(printf, 5, 6))) static doctor_finding *add(doctor *doc, doctor_level level,
                                                                 const char *check, double number,
                                                                 const char *format, ...) {
    va_list list;
    if (doc->findings_count == DOCTOR_FINDINGS) doc->findings_count--;
    doctor_finding *finding = &doc->findings[doc->findings_count++];
    *finding = (doctor_finding){.level = level, .check = check, .number = number};
    va_start(list, format);
    ascii_print_list(finding->sentence, sizeof finding->sentence, format, list);
    va_end(list);
    return finding;
}

static void advise(doctor_finding *finding, const char *advice) {
    snprintf(finding->advice, sizeof finding->advice, "%s", advice);
}

/* "state 3 (joints 3)": a number of the state with its key and its place there. */
static const char *state_name(const doctor *doc, int number, char out[96]) {
    int at = 0, length = 0;
    const char *key;
    for (int part = 0; (key = openpi_policy_state_key(doc->policy, part, &length)); part++) {
        if (!length || number < at + length) break;
        at += length;
    }
    if (key) snprintf(out, 96, "state %d (%.64s %d)", number, key, number - at);
    else snprintf(out, 96, "state %d", number);
    return out;
}

static const char *action_name(const doctor *doc, int action, char out[64]) {
    const char *name = openpi_policy_action_name(doc->policy, action);
    if (name && *name) snprintf(out, 64, "action %d (%s)", action, name);
    else snprintf(out, 64, "action %d", action);
    return out;
}

/* ---- states -------------------------------------------------------------------------------------------- */

/* How far x is outside of the statistics of number d, in spans; a span that is nothing counts as one part in
 * a thousand of its place. */
static double outside(const doctor *doc, double x, int d) {
    double span = fmax(doc->high[d] - doc->low[d], 1e-3 * (fabs(doc->low[d]) + fabs(doc->high[d])) + 1e-6);
    return fmax(fmax(doc->low[d] - x, x - doc->high[d]) / span, 0);
}

/* The part of the requests whose number `from` is far outside of the statistics of number `as`. */
static double far_part(const doctor *doc, int from, int as) {
    int count = 0;
    for (int i = 0; i < doc->count; i++) count += outside(doc, doc->sights[i].state[from], as) > FAR;
    return doc->count ? (double)count / doc->count : 0;
}

static void range_of(const doctor *doc, int d, double *least, double *most) {
    *least = INFINITY, *most = -INFINITY;
    for (int i = 0; i < doc->count; i++) {
        *least = fmin(*least, doc->sights[i].state[d]);
        *most = fmax(*most, doc->sights[i].state[d]);
    }
}

static void judge_range(doctor *doc, int d) {
    char name[96];
    double part = far_part(doc, d, d), least, most;
    if (part <= 0) return;
    range_of(doc, d, &least, &most);
    doctor_finding *f = add(doc, part > MANY ? DOCTOR_WRONG : DOCTOR_WARNING, "state range", part,
                            "%s is %.4g … %.4g, the checkpoint's data %.4g … %.4g (q01 … q99): far "
                            "outside in "
                            "%.0f %% of the requests", state_name(doc, d, name), least, most, doc->low[d],
                            doc->high[d], 100 * part);
    advise(f, "compare unit, sign, zero and order of the state with the training data; choose the statistics "
              "with --assets or --norm-stats");
}

static void judge_movement(doctor *doc, int d) {
    char name[96];
    double least, most, span = doc->high[d] - doc->low[d];
    range_of(doc, d, &least, &most);
    if (doc->count < FEW || most - least > 1e-3 * span || span <= 1e-6) return;
    advise(add(doc, DOCTOR_WARNING, "state movement", most - least,
               "%s never moves: it is %.4g in all %d requests, and moved by %.4g in the checkpoint's data",
               state_name(doc, d, name), least, doc->count, span),
           "see that it is read from the robot and not a constant");
}

/* Part of the requests with a number far outside, where number i stands at place of[i]. */
static double far_as(const doctor *doc, const int *of) {
    double most = 0;
    for (int i = 0; i < doc->numbers; i++) most = fmax(most, far_part(doc, i, of[i]));
    return most;
}

/* An order in which all numbers fit, where they do not as they are. */
static void judge_order(doctor *doc) {
    int of[OPENPI_ACTION_DIM], n = doc->numbers;
    char a[96], b[96];
    for (int i = 0; i < n; i++) of[i] = i;
    double as_is = far_as(doc, of);
    if (as_is <= 2 * MANY) return;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) {
            of[i] = j, of[j] = i;
            double swapped = far_as(doc, of);
            of[i] = i, of[j] = j;
            if (swapped > MANY / 2) continue;
            advise(add(doc, DOCTOR_WRONG, "order", as_is,
                       "%s and %s look swapped: %.0f %% of the requests are far outside of the data "
                       "as they are, "
                       "%.0f %% with the two exchanged", state_name(doc, i, a), state_name(doc, j, b),
                       100 * as_is, 100 * swapped),
                   "put the state's numbers into the order of the training data");
            return;
        }
    for (int shift = 1; shift < n; shift++) {
        for (int i = 0; i < n; i++) of[i] = (i + shift) % n;
        double shifted = far_as(doc, of);
        if (shifted > MANY / 2) continue;
        advise(add(doc, DOCTOR_WRONG, "order", as_is,
                   "the state looks shifted by %d: %.0f %% of the requests are far outside of the "
                   "data as they "
                   "are, %.0f %% where %s counts as state %d (a gripper that comes first?)", shift,
                   100 * as_is, 100 * shifted, state_name(doc, 0, a), of[0]),
               "put the state's numbers into the order of the training data");
        return;
    }
}

static void judge_states(doctor *doc) {
    double largest = 0;
    for (int i = 0; i < doc->count; i++)
        for (int d = 0; d < doc->numbers; d++) largest = fmax(largest, fabs(doc->sights[i].normal[d]));
    if (!doc->known && doc->numbers)
        advise(add(doc, largest > 3 ? DOCTOR_WRONG : DOCTOR_WARNING, "normalisation", largest,
                   "the state is not normalised: it reaches the model as it comes, up to %.4g, where trained "
                   "models expect about -1 … 1", largest),
               "give the statistics that the checkpoint was trained with, with --norm-stats, or a "
               "robot whose "
               "state is normalised");
    for (int d = 0; d < doc->numbers && doc->known; d++) {
        judge_range(doc, d);
        judge_movement(doc, d);
    }
    if (doc->known) judge_order(doc);
}

/* What does nothing although it is there. */
static void judge_statistics(doctor *doc) {
    int idle = 0;
    for (int d = 0; d < doc->numbers; d++)
        idle += fabs(doc->low[d] + doc->high[d]) < 1e-9 &&
                (fabs(doc->high[d] - 1) < 1e-9 || fabs(doc->high[d] - 2.3263) < 1e-9);
    if (!doc->known || !doc->numbers || idle < doc->numbers) return;
    advise(add(doc, DOCTOR_WARNING, "normalisation", idle,
               "the statistics of all %d numbers of the state are those of nothing (mean 0 and std "
               "1, or -1 … "
               "1): normalising changes nothing", idle),
           "see that the checkpoint has the statistics of its training data, and no placeholder");
}

/* ---- pictures and prompts ------------------------------------------------------------------------------ */

/* The most requests in a row in which a slot's picture is byte for byte the same. */
static int longest_same(const doctor *doc, int slot) {
    int run = 0, most = 0;
    for (int i = 0; i < doc->count; i++) {
        const doctor_picture *now = &doc->sights[i].pictures[slot];
        int same = i && now->there && doc->sights[i - 1].pictures[slot].there &&
                   now->hash == doc->sights[i - 1].pictures[slot].hash;
        run = !now->there ? 0 : same ? run + 1 : 1;
        if (run > most) most = run;
    }
    return most;
}

static void judge_camera(doctor *doc, int slot, const char *name) {
    int there = 0, dark = 0, same = longest_same(doc, slot);
    double mean = 0;
    for (int i = 0; i < doc->count; i++) {
        const doctor_picture *p = &doc->sights[i].pictures[slot];
        there += p->there;
        mean += p->there ? p->mean : 0;
        dark += p->there && p->mean < 0.03 && p->deviation < 0.02;
    }
    if (!there) {
        advise(add(doc, DOCTOR_WARNING, "camera", 0, "camera %s is in no request: the model does not see it",
                   name), "send it, or see that the checkpoint was trained without it");
        return;
    }
    if (dark > MANY * there)
        advise(add(doc, DOCTOR_WRONG, "camera", (double)dark / there,
                   "camera %s is black in %.0f %% of its pictures", name, 100.0 * dark / there),
               "see that the camera is open and its cap off; leave a camera out that is not there");
    else if (same >= FEW && same > doc->count / 2)
        advise(add(doc, DOCTOR_WRONG, "camera", same,
                   "camera %s is frozen: %d pictures in a row are the same, byte for byte", name, same),
               "see that each request has a new picture");
    else
        add(doc, DOCTOR_FINE, "camera", mean / there, "camera %s is live: mean brightness %.2f of 1", name,
            mean / there);
}

static void judge_twins(doctor *doc, const char *const *names) {
    for (int a = 0; a < OPENPI_CAMERAS; a++)
        for (int b = a + 1; b < OPENPI_CAMERAS; b++) {
            int same = 0;
            for (int i = 0; i < doc->count; i++) {
                const doctor_picture *p = doc->sights[i].pictures;
                same += p[a].there && p[b].there && p[a].hash == p[b].hash && p[a].deviation > 0.02;
            }
            if (same <= doc->count / 2) continue;
            advise(add(doc, DOCTOR_WRONG, "camera", (double)same / doc->count,
                       "cameras %s and %s have the same picture in %d of %d requests", names[a], names[b],
                       same, doc->count),
                   "send each camera's own picture");
        }
}

static void judge_pictures(doctor *doc) {
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    const char *names[OPENPI_CAMERAS];
    openpi_policy_get_info(doc->policy, &info, NULL);
    for (int slot = 0; slot < OPENPI_CAMERAS; slot++) {
        names[slot] = *info.cameras[slot] ? info.cameras[slot] : robot_slot_name(slot);
        if (*info.cameras[slot]) judge_camera(doc, slot, names[slot]);
    }
    judge_twins(doc, names);
}

static void judge_prompts(doctor *doc) {
    int cut = 0;
    for (int i = 0; i < doc->count; i++) cut += doc->sights[i].truncated;
    if (!cut) return;
    advise(add(doc, doc->policy->state_in_prompt ? DOCTOR_WRONG : DOCTOR_WARNING, "prompt",
               (double)cut / doc->count, "the prompt is longer than %d tokens in %d of %d requests: "
                                         "its end%s "
               "is cut", doc->policy->max_prompt, cut, doc->count,
               doc->policy->state_in_prompt ? ", and with it the state," : ""),
           "write shorter prompts");
}

/* ---- actions ------------------------------------------------------------------------------------------- */

static void judge_limits(doctor *doc) {
    long beyond = 0;
    for (int kind = 0; kind < LIMIT_KINDS; kind++) beyond += doc->beyond[kind];
    if (!doc->limits.count) {
        advise(add(doc, DOCTOR_WARNING, "limits", 0, "the robot has no limits: no action is checked "
                                                     "before it "
                   "is sent"), "put \"limits\" into the robot's file (docs/robots.md)");
        return;
    }
    double part = doc->limited ? (double)beyond / (double)doc->limited : 0;
    if (doc->stopped)
        advise(add(doc, DOCTOR_WRONG, "limits", doc->stopped, "of %d of %d chunks nothing may be sent: %s",
                   doc->stopped, doc->chunks, doc->stop),
               "compare units and order of actions and limits with the training data");
    if (beyond)
        advise(add(doc, part > 0.05 ? DOCTOR_WRONG : DOCTOR_WARNING, "limits", part,
                   "%.1f %% of the actions' numbers are beyond a limit: %ld below min, %ld above max, %ld "
                   "beyond max_step, %ld beyond max_start_jump", 100 * part, doc->beyond[LIMIT_MIN],
                   doc->beyond[LIMIT_MAX], doc->beyond[LIMIT_STEP], doc->beyond[LIMIT_START]),
               "compare units and order of actions and limits with the training data");
    else if (!doc->stopped)
        add(doc, DOCTOR_FINE, "limits", 0, "no action of %d chunks is beyond a limit", doc->chunks);
}

/* A position that is to begin where the robot is, and does not. */
static void judge_jumps(doctor *doc) {
    char name[64];
    for (int d = 0; d < doc->policy->action_dim; d++) {
        double span = doc->most[d] - doc->least[d], jump = doc->jump[d];
        if (!isfinite(jump) || jump <= 10 * doc->step[d] || jump <= 0.5 * span || jump < 1e-3) continue;
        advise(add(doc, DOCTOR_WRONG, "first action", jump,
                   "%s begins %.4g away from the measured state, %.3g times as far as from one action to the "
                   "next (%.4g)", action_name(doc, d, name), jump, jump / fmax(doc->step[d], 1e-9),
                   doc->step[d]),
               "see that the action is an absolute position, and of which number of the state (\"delta\" and "
               "\"starts\" of the robot's file)");
    }
}

static void judge_noise(doctor *doc) {
    char name[64];
    int worst = 0, dims = doc->policy->action_dim;
    double mean = 0;
    for (int d = 0; d < dims; d++) {
        mean += doc->spread[d] / dims;
        if (doc->spread[d] > doc->spread[worst]) worst = d;
    }
    doctor_finding *f = add(doc, doc->spread[worst] > 0.25 ? DOCTOR_WARNING : DOCTOR_FINE, "noise", mean,
                            "between %d noises the actions differ by %.1f %% of the data's span, %s most, by "
                            "%.1f %%", doc->seeds, 100 * mean, action_name(doc, worst, name),
                            100 * doc->spread[worst]);
    if (f->level != DOCTOR_FINE)
        advise(f, "a trained model is surer where it knows the scene: compare pictures, prompt and "
                  "state with "
                  "the training data");
}

static void judge_actions(doctor *doc) {
    if (doc->outside > 0.01)
        advise(add(doc, doc->outside > 0.05 ? DOCTOR_WRONG : DOCTOR_WARNING, "action range", doc->outside,
                   "%.1f %% of the model's numbers are more than a span outside of the data's actions",
                   100 * doc->outside),
               "see that checkpoint, robot and statistics belong together");
    judge_limits(doc);
    judge_jumps(doc);
    if (doc->seeds > 1) judge_noise(doc);
}

/* ---- all ----------------------------------------------------------------------------------------------- */

/* The worst first; of one level in the order of the checks. */
static void sort(doctor *doc) {
    for (int i = 1; i < doc->findings_count; i++)
        for (int j = i; j && doc->findings[j].level > doc->findings[j - 1].level; j--) {
            doctor_finding moved = doc->findings[j];
            doc->findings[j] = doc->findings[j - 1];
            doc->findings[j - 1] = moved;
        }
}

doctor_level doctor_judge(doctor *doc) {
    doc->findings_count = 0;
    if (doc->refused)
        advise(add(doc, DOCTOR_WRONG, "request", doc->refused, "%d of %d requests are refused, the "
                                                               "first is %s",
                   doc->refused, doc->refused + doc->count, doc->refusal),
               "send what the robot's file says");
    if (doc->count) {
        judge_states(doc);
        judge_statistics(doc);
        judge_pictures(doc);
        judge_prompts(doc);
    }
    if (doc->chunks) judge_actions(doc);
    sort(doc);
    return doc->findings_count ? doc->findings[0].level : DOCTOR_FINE;
}

const char *doctor_level_name(doctor_level level) {
    static const char *const names[] = {"fine", "warning", "wrong"};
    return names[level];
}
