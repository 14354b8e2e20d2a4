/* A recording (recording/call.h): every call of it read. The file is one in memory. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "recording/call.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    openpi_error error = OPENPI_ERROR_INIT;
    recording_reader *reader;
    recorded_call call;
    char path[64];
    int more = 1, file = memfd_create("recording", 0);
    PROMISE(file >= 0 && write(file, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (went_well(recording_open(path, &reader, &error), &error)) {
        while (more && went_well(recording_next(reader, &call, &more, &error), &error)) {
            if (!more) break;
            PROMISE(call.horizon >= 0 && call.horizon <= OPENPI_MAX_HORIZON);
            PROMISE(call.status != OPENPI_OK || call.model_actions);
            PROMISE(call.rtc.mode == OPENPI_RTC_OFF || call.rtc.previous);
            PROMISE(strlen(call.robot) < 128 && strlen(call.address) < 128);
        }
        recording_reader_close(reader);
    }
    close(file);
    return 0;
}
