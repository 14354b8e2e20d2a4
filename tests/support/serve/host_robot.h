/* openpi_host serves the smallest model: its device stands still, is lost, and its clock jumps when a signal
 * says so. A test's set_up and tear_down. After served.h and small_robot.h. */
#ifndef TESTS_HOST_ROBOT_H
#define TESTS_HOST_ROBOT_H

enum { AGAIN = 75 };             /* the exit status that says: start me again                             */

static msgpack_sbuffer request;
static char robot_args[900];     /* arguments for `openpi serve`: the model and its robot                  */

static inline int set_up(void **state) {
    if (open_box(state) || small_write()) return -1;
    snprintf(robot_args, sizeof robot_args, "'%s/model' --robot '%s/robot.json' --threads 2 --steps 1",
             box.folder, box.folder);
    small_request(0, &request);
    served_instead = OPENPI_HOST;
    return 0;
}

static inline int tear_down(void **state) {
    msgpack_sbuffer_destroy(&request);
    return close_box(state);
}

#endif
