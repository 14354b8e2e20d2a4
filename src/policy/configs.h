/* openpi's named training configs: what each sets, as a robot record, or why it cannot be run here. */
#ifndef POLICY_CONFIGS_H
#define POLICY_CONFIGS_H

#include "openpi.h"

/* The config's record, a constant in the JSON form of robots.h. Configs of openpi that this engine cannot run
 * are OPENPI_UNSUPPORTED with the reason; unknown names are OPENPI_NOT_FOUND with a list of the known ones.
 */
openpi_status config_find(const char *name, const char **record, openpi_error *error);

/* The config that openpi serves a built-in robot of this name with, NULL: of none. For synthetic weights,
 * which state no horizon. */
const char *config_served(const char *robot, openpi_variant variant);

/* The name of the i-th config that can be run, NULL past the last; for tests and help. */
const char *config_name(int index);

/* "10 (pi0_droid), 15 (pi05_droid)": the horizons of this robot's configs; 1: one of them is not 50. */
int config_horizons(const char *robot, char *text, size_t bytes);

#endif
