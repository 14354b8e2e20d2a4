/* openpi.h - the π0 and π0.5 robot policies in C.
 *
 * Camera frames, a robot state and an instruction go in; a chunk of actions comes out.
 *
 *   openpi_policy.h   named pictures of any size, raw robot state, instruction  ->  robot actions
 *   openpi_engine.h   prepared tensors and noise                                ->  normalised actions
 *   openpi_tools.h    looking at a checkpoint, converting one, making one up
 *
 * This header is those three, and says what holds for all. openpi_runner.h, which it does not include, leads
 * a robot from chunk to chunk.
 *
 * Example
 *   From one observation to a chunk of actions; what is not set keeps its default. README.md has it as a
 *   whole program.
 *
 *     openpi_image image = OPENPI_IMAGE_INIT;
 *     openpi_observation observation = OPENPI_OBSERVATION_INIT;
 *     openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
 *     openpi_error error = OPENPI_ERROR_INIT;
 *     openpi_engine *engine = NULL;
 *     openpi_session *session = NULL;
 *     openpi_policy *policy = NULL;
 *     openpi_request *request = NULL;
 *     double actions[OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM];
 *
 *     image.name = "base", image.data = rgb, image.height = 480, image.width = 640;
 *     observation.images = &image, observation.image_count = 1;
 *     observation.state = state, observation.state_length = 8;
 *     observation.prompt = "pick up the fork";
 *     options.robot = "none";
 *     if (openpi_engine_open("checkpoint", NULL, &engine, &error) ||
 *         openpi_session_create(engine, NULL, &session, &error) ||
 *         openpi_policy_open("checkpoint", &options, &policy, &error) ||
 *         openpi_request_create(policy, &request, &error) ||
 *         openpi_policy_infer(request, session, &observation, NULL, actions,
 *                             sizeof actions / sizeof *actions, NULL, &error))
 *         fprintf(stderr, "%s\n", error.message);
 *     else
 *         printf("first action: %g\n", actions[0]);
 *     openpi_request_close(request);
 *     openpi_policy_close(policy);
 *     openpi_session_close(session);
 *     openpi_engine_close(engine);
 *
 * Handles and threads
 *   openpi_engine    a loaded model and its worker threads. Immutable after opening: any thread, at once.
 *   openpi_session   buffers and plan of one stream of inferences. One thread at a time; several sessions
 *                    of one engine may run at once and share its workers.
 *   openpi_policy    robot transform, normalisation and tokenizer. Immutable: any thread, at once.
 *   openpi_request   the scratch that turns one observation into a prepared sample. One thread at a time.
 *   A handle is closed by one thread, when no other uses it. Functions without a handle may be called by any
 *   thread, at once.
 *
 * Rules that hold for every function here
 *   - Nothing prints, exits, reads an environment variable or keeps a global. The program's locale changes
 *     nothing: numbers have a point, and names compare as in the C locale.
 *   - A function that can fail returns openpi_status and, where `error` is not NULL, writes one sentence
 *     that names the file, tensor, field or value and what was expected. On failure outputs are untouched
 *     unless stated. A NULL where a pointer is required is OPENPI_BAD_ARGUMENT.
 *   - Data that the caller passes are read during the call only and stay the caller's (an observer's `user`
 *     as long as it is set).
 *   - Handles are owned by the caller and closed with the matching function; closing NULL is allowed.
 *     Close requests before their policy. An engine may be closed while sessions of it are open: they keep
 *     working, and what they share with it is freed when the last of them is closed.
 *   - A call takes less than 64 KiB of its thread's stack with the device "cpu". A GPU's driver runs on the
 *     caller's stack too and says nothing about it: give such threads 1 MiB.
 *   - A child that fork makes may open engines of its own. The parent's engine has no threads and no device
 *     there: openpi_session_create and openpi_session_run return OPENPI_SYSTEM, the close functions return.
 *   - Strings are UTF-8 and NUL-terminated unless a length is given.
 *   - Arrays are contiguous, the last index fastest; times are milliseconds, sizes bytes.
 *
 * Sizes
 *   Every struct here begins with `size`, the caller's sizeof. OPENPI_*_INIT sets it and makes every other
 *   field 0, which is the default. So a program and a library of different releases understand each other:
 *   - A struct that the library reads may be shorter than the library's own (a program of an older release):
 *     the missing fields are 0. Where it is longer, the bytes that the library does not know must be 0.
 *   - Of a struct that the library fills, it writes the first `size` bytes at most, sets bytes that it does
 *     not know to 0 and keeps `size`.
 *   - Arrays: element 0's `size` is the distance between elements. Where the library reads, all elements must
 *     have the same `size`; where it fills, it sets that of the others.
 *   - A size that no release has (0, less than the first release's, no multiple of sizeof(size_t), above
 *     64 KiB) and unknown bytes that are not 0 are OPENPI_BAD_ARGUMENT. The sentence names the macro that was
 *     forgotten. An openpi_error of such a size is left untouched: no sentence can be written into it.
 *   How a struct grows (for those who change a header): a new field goes to the end, 0 means what was done
 *   before it, OPENPI_*_INIT gets a value for it. No field is moved, resized or removed, no struct ends in
 *   padding (src/base/boundary.h lists all of them, the compiler checks it). openpi_dims lies inside other
 *   structs, so its size never changes: a new field takes the place of one of its `reserved`.
 *
 * Notation: B batch, H action horizon (chunk length), N denoising steps, L prompt tokens.
 * Formulas: MODEL.md of this project, which follows Physical-Intelligence/openpi.
 */
#ifndef OPENPI_H
#define OPENPI_H

#include "openpi_engine.h"
#include "openpi_policy.h"
#include "openpi_tools.h"

#endif
