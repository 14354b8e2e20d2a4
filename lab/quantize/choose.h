/* Which candidates to take: one format at most for each group, what they cost together within the bound. */
#ifndef QUANTIZE_CHOOSE_H
#define QUANTIZE_CHOOSE_H

typedef struct choice_candidate {
    int group;
    double load;                 /* alone, as a share of the bound: errors of groups are independent, so
                                    the squares of the loads add, and 1 is the bound                      */
    double gain;                 /* ms or bytes of a call that it saves; 0 or less: never taken           */
    int taken;                   /* 1: chosen                                                             */
} choice_candidate;

/* Sets `taken`, Σ load² at most `room`. First by square per gain, least first, whatever still fits; then
 * groups change to a format that gains at least a twentieth more while the sum fits. 0: none is taken. */
int choice_make(choice_candidate *list, int count, double room);
/* √Σ load² of those taken. */
double choice_predicted(const choice_candidate *list, int count);

#endif
