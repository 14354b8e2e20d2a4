/* Options of a verb that runs a model with real-time chunking: the previous chunk from a file, and the new
 * one into a file for the next call. */
#ifndef CLI_PREVIOUS_H
#define CLI_PREVIOUS_H

#include <jansson.h>

#include "cli.h"

typedef struct previous_values {
    const char *previous, *keep, *max_weight;
    int mode, schedule;          /* CHOICE in the order of openpi_rtc_mode and openpi_rtc_schedule        */
    int executed, delay, overlap;
} previous_values;

/* The previous chunk, of a run: zeros at first. */
typedef struct previous_chunk {
    openpi_rtc rtc;
    int rows, dims, element;     /* the file's shape; bytes a number: 4 model space, 8 from --keep        */
    float *previous;             /* model space, [rows][dims]                                             */
    double *kept;                /* [rows][32]                                                            */
} previous_chunk;

#define PREVIOUS_OPTIONS(type, member)                                                                     \
    {OPTION_TEXT, "previous", "FILE",                                                                      \
     "the chunk that the robot is executing, which the new one is to follow on from: what --keep of the "  \
     "call before wrote, or a .npy file, float32 [steps, dimensions], normalised, in model space",         \
     .offset = offsetof(type, member.previous)},                                                           \
    {OPTION_CHOICE, "rtc", "guided|trained|vjp",                                                           \
     "how: guided pulls the new chunk towards the previous one (any checkpoint); trained takes its first " \
     "steps as given (a LeRobot π0.5 with rtc_training_max_delay); vjp, the paper's own guidance, needs a " \
     "backward pass and is refused", .offset = offsetof(type, member.mode)},                               \
    {OPTION_INT, "executed", "N", "steps of the previous chunk that the robot has executed (default: 0)",  \
     .offset = offsetof(type, member.executed), .low = 0, .high = OPENPI_MAX_HORIZON},                     \
    {OPTION_INT, "delay", "N",                                                                             \
     "further steps of it that the robot will have executed when the new chunk is there (default: 0)",     \
     .offset = offsetof(type, member.delay), .low = 0, .high = OPENPI_MAX_HORIZON},                        \
    {OPTION_INT, "overlap", "N",                                                                           \
     "guided: where the pull ends, in steps after the executed ones (default: the checkpoint's, else 10)", \
     .offset = offsetof(type, member.overlap), .low = 1, .high = OPENPI_MAX_HORIZON},                      \
    {OPTION_CHOICE, "schedule", "zeros|ones|linear|exp",                                                   \
     "guided: how the pull fades from the delay to the overlap's end (default: the checkpoint's, else "    \
     "linear)", .offset = offsetof(type, member.schedule)},                                                \
    {OPTION_TEXT, "max-weight", "X",                                                                       \
     "guided: largest weight of the pull, cut to --steps (default: the checkpoint's, else 10)",            \
     .offset = offsetof(type, member.max_weight)},                                                         \
    {OPTION_OUTPUT, "keep", "FILE",                                                                        \
     "also write the chunk into this .npy file, in the form that --previous of the next call reads: "      \
     "float64 [horizon, 32]; relative actions are absolute in it", .offset = offsetof(type, member.keep)}

/* Checks the options against each other and reads the file. */
int previous_read(const verb *verb, const previous_values *values, previous_chunk *out);
/* Tells where a checkpoint that was trained for delays runs guided, and where the weight of the pull is cut
 * to the number of denoising steps. */
void previous_say(const verb *verb, const previous_values *values, const previous_chunk *chunk,
                  const openpi_engine_info *engine, int steps);
/* What is left of the chunk, relative to the prepared observation, into out->rtc. */
int previous_prepare(const verb *verb, const previous_values *values, const openpi_request *request,
                     previous_chunk *out);
/* Writes --keep. */
int previous_keep(const verb *verb, const previous_values *values, const openpi_request *request,
                  const float *model_actions, int horizon);
/* What a result's head says of it; null where it is off. */
json_t *previous_json(const previous_values *values, const previous_chunk *chunk);
void previous_free(previous_chunk *chunk);

#endif
