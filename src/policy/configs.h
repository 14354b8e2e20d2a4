/* openpi's named training configs: what each sets, as a robot record, or why it cannot be run here. */
#ifndef POLICY_CONFIGS_H
#define POLICY_CONFIGS_H

#include "openpi.h"

/* The config's record in the JSON form of robots.h, a constant. Names that openpi has and this engine cannot
 * run are OPENPI_UNSUPPORTED with the reason; unknown ones are OPENPI_NOT_FOUND with those that work. */
openpi_status config_find(const char *name, const char **record, openpi_error *error);

/* The i-th config that works, NULL past the last; for tests and help. */
const char *config_name(int index);

#endif
