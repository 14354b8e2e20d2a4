/* What a policy asks of an observation, for whoever tells its clients: cameras and the default prompt. */
#include "policy/policy.h"

const char *openpi_policy_camera(const openpi_policy *policy, int camera, int *slot, int *required,
                                 int *chw) {
    int count = !policy || camera < 0 ? 0 : policy->lerobot ? policy->pipeline.camera_count
                                                            : policy->robot.camera_count;
    if (camera >= count) return NULL;
    const robot_camera *known = policy->lerobot ? NULL : &policy->robot.cameras[camera];
    if (slot) *slot = !known ? camera : known->slot == ROBOT_SLOT_UNUSED ? -1 : known->slot;
    if (required) *required = known ? known->required : 0;
    if (chw) *chw = known ? policy->robot.always_chw : 0;
    return known ? known->key : policy->pipeline.empty[camera] ? "" :
                                lerobot_camera_name(&policy->pipeline, camera);
}

const char *openpi_policy_prompt(const openpi_policy *policy) {
    return policy && !policy->lerobot && policy->robot.has_prompt ? policy->robot.prompt : NULL;
}
