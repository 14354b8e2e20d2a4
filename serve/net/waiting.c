/* See waiting.h. */
#include "waiting.h"

#include <stddef.h>

void waiting_leave(waiting *all, waiter *one) {
    if (!one->waits) return;
    if (one->before) one->before->after = one->after;
    else all->oldest = one->after;
    if (one->after) one->after->before = one->before;
    else all->newest = one->before;
    one->waits = 0;
    all->count--;
}

void waiting_join(waiting *all, waiter *one, double until_ms) {
    waiting_leave(all, one);
    one->until_ms = until_ms;
    one->after = NULL;
    one->before = all->newest;
    if (one->before) one->before->after = one;
    else all->oldest = one;
    all->newest = one;
    one->waits = 1;
    all->count++;
}

waiter *waiting_late(const waiting *all, double now_ms) {
    waiter *one = all->oldest;
    while (one && one->until_ms > now_ms) one = one->after;
    return one;
}

waiter *waiting_crowded(const waiting *all, address_key key, int most_each, int most) {
    waiter *oldest = NULL;
    int count = 0;
    for (waiter *one = all->oldest; one; one = one->after) {
        if (!address_key_equal(one->key, key)) continue;
        if (!oldest) oldest = one;
        count++;
    }
    if (count >= most_each) return oldest;
    return all->count >= most ? all->oldest : NULL;
}
