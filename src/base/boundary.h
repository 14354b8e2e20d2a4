/* How public structs cross the library's boundary ("Sizes" at the head of openpi.h): a caller's struct states
 * its `size`, may be shorter or longer than the library's, and is never read or written beyond that size.
 *
 *   boundary_take     the caller's struct -> the library's own copy
 *   boundary_check    may the caller's struct be filled? Asked before any work is done
 *   boundary_give     the library's struct -> the caller's
 *
 * The library works on its own structs only. Those begin with OPENPI_*_INIT. */
#ifndef BASE_BOUNDARY_H
#define BASE_BOUNDARY_H

#include "openpi_runner.h"

/* X(struct, its macro, the last field that every release has, the last field of this one). A size that ends
 * before the former is refused. After the latter there may be no padding: a later field would find an older
 * caller's garbage there. */
#define BOUNDARY_LIST(X)                                                               \
    X(openpi_error, OPENPI_ERROR_INIT, status, message)                                \
    X(openpi_device, OPENPI_DEVICE_INIT, name, reserved)                               \
    X(openpi_dims, OPENPI_DIMS_INIT, vocab, reserved)                                  \
    X(openpi_synthetic, OPENPI_SYNTHETIC_INIT, dims.vocab, outliers)                   \
    X(openpi_convert_options, OPENPI_CONVERT_OPTIONS_INIT, threads, tell_user)           \
    X(openpi_switch, OPENPI_SWITCH_INIT, name, text)                                   \
    X(openpi_engine_options, OPENPI_ENGINE_OPTIONS_INIT, device, as_card)              \
    X(openpi_engine_info, OPENPI_ENGINE_INFO_INIT, dims.vocab, checkpoint_hash)        \
    X(openpi_sample, OPENPI_SAMPLE_INIT, image_mask, state)                            \
    X(openpi_timing, OPENPI_TIMING_INIT, stage_ms[7], total_ms)                        \
    X(openpi_session_options, OPENPI_SESSION_OPTIONS_INIT, batch, reserved)            \
    X(openpi_rtc, OPENPI_RTC_INIT, dims, max_weight)                                   \
    X(openpi_session_info, OPENPI_SESSION_INFO_INIT, max_prompt, w8_not_finite)        \
    X(openpi_policy_options, OPENPI_POLICY_OPTIONS_INIT, robot, formats)               \
    X(openpi_policy_info, OPENPI_POLICY_INFO_INIT, cameras, on_violation)              \
    X(openpi_limits, OPENPI_LIMITS_INIT, count, max_start_jump)                        \
    X(openpi_limited, OPENPI_LIMITED_INIT, changed, changed_steps)                     \
    X(openpi_image, OPENPI_IMAGE_INIT, data, reserved)                                 \
    X(openpi_observation, OPENPI_OBSERVATION_INIT, image_count, prompt_length)         \
    X(openpi_field, OPENPI_FIELD_INIT, rank, unknown)                                  \
    X(openpi_extras, OPENPI_EXTRAS_INIT, noise, runner_reserved)                       \
    X(openpi_source, OPENPI_SOURCE_INIT, infer, wants_fields)                          \
    X(openpi_runner_options, OPENPI_RUNNER_OPTIONS_INIT, rtc, black_allowed)           \
    X(openpi_runner_state, OPENPI_RUNNER_STATE_INIT, reason, age_ms)                   \
    X(openpi_runner_info, OPENPI_RUNNER_INFO_INIT, action_dim, camera)

typedef enum boundary_type {
#define X(type, macro, first, last) BOUNDARY_##type,
    BOUNDARY_LIST(X)
#undef X
    BOUNDARY_TYPES
} boundary_type;

enum { BOUNDARY_LARGEST = 64 << 10 };         /* bytes; a larger size is a forgotten OPENPI_*_INIT */

/* Each names the struct's type, so that the compiler refuses a pointer to another struct. */
#define BOUNDARY_TAKE(type, given, own, error) \
    boundary_take(BOUNDARY_##type, (const type *){given}, (type *){own}, error)
#define BOUNDARY_CHECK(type, given, error) boundary_check(BOUNDARY_##type, (const type *){given}, error)
#define BOUNDARY_GIVE(type, own, given) boundary_give(BOUNDARY_##type, (const type *){own}, (type *){given})
#define BOUNDARY_TAKE_AT(type, array, i, own, error) \
    boundary_take_at(BOUNDARY_##type, (const type *){array}, i, (type *){own}, error)
#define BOUNDARY_GIVE_AT(type, own, array, i) \
    boundary_give_at(BOUNDARY_##type, (const type *){own}, (type *){array}, i)

/* *own is the caller's struct as this release knows it, missing fields 0. `given` NULL: all of it is 0. */
openpi_status boundary_take(boundary_type type, const void *given, void *own, openpi_error *error);
/* Element i of the caller's array. */
openpi_status boundary_take_at(boundary_type type, const void *array, int i, void *own, openpi_error *error);

/* May `given` be filled? NULL may: boundary_give then writes nothing. */
openpi_status boundary_check(boundary_type type, const void *given, openpi_error *error);

/* Fills a struct that passed boundary_check; NULL: does nothing. Of an array boundary_check saw element 0
 * only: boundary_give_at sets the sizes of the others. */
void boundary_give(boundary_type type, const void *own, void *given);
void boundary_give_at(boundary_type type, const void *own, void *array, int i);

/* 1: a size that a release has or may have. */
int boundary_size_is_good(boundary_type type, size_t size);

#endif
