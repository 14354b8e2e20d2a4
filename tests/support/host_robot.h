/* openpi_host serves the LIBERO robot of the goldens: its device stands still, is lost, and its clock jumps
 * when a signal says so. A test's set_up and tear_down. After served.h and robot_message.h. */
#ifndef TESTS_HOST_ROBOT_H
#define TESTS_HOST_ROBOT_H

enum { AGAIN = 75 };             /* the exit status that says: start me again                             */

static msgpack_sbuffer request;

static inline int set_up(void **state) {
    load_request("libero_pi0", &request);
    served_instead = OPENPI_HOST;
    return open_box(state);
}

static inline int tear_down(void **state) {
    msgpack_sbuffer_destroy(&request);
    return close_box(state);
}

#endif
