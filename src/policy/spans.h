/* Dimensions whose statistics have no span: the data had one value only, and what differs from it is divided
 * by almost nothing. */
#ifndef POLICY_SPANS_H
#define POLICY_SPANS_H

#include "policy/policy.h"

/* 1: dimension `d` has a span or a deviation that is 0, or that the rounding of its statistics made. */
int spans_flat_lerobot(const lerobot_norm *norm, int d);
int spans_flat_openpi(norm_mode mode, const norm_stats *stats, int d);

/* Notes for the dimensions of the state and, where actions are relative, of the actions. */
void spans_tell(openpi_policy *policy, int relative);

#endif
