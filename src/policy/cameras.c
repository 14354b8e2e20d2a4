/* See cameras.h. */
#include "policy/cameras.h"

#include <stdio.h>

const char *cameras_describe(const openpi_policy *policy, char *out, size_t bytes) {
    size_t at = 0;
    if (!policy->lerobot) return robot_describe_cameras(&policy->robot, out, bytes);
    for (int c = 0; c < policy->pipeline.camera_count && at < bytes; c++)
        if (!policy->pipeline.empty[c])
            at += (size_t)snprintf(out + at, bytes - at, "%s%s", at ? ", " : "",
                                   lerobot_camera_name(&policy->pipeline, c));
    return out;
}

const char *cameras_robot(const openpi_policy *policy) {
    return policy->lerobot ? "lerobot" : policy->robot.name;
}

int cameras_find(const openpi_policy *policy, const char *name) {
    if (!policy->lerobot) return robot_camera_slot(&policy->robot, name);
    int camera = lerobot_camera(&policy->pipeline, name);
    return camera < 0 ? ROBOT_SLOT_UNKNOWN : camera;
}

int cameras_by_position(const openpi_policy *policy, const char *name) {
    return policy->lerobot && lerobot_camera_by_position(&policy->pipeline, name);
}
