/* Predictions of the static model (lab/paper/paper.h) for the verbs roof and profile. Whatever shows them
 * says PREDICTED: the hardware's name in every table, chart and file begins with it. */
#ifndef CLI_PAPER_H
#define CLI_PAPER_H

#include "lab/paper/paper.h"
#include "subject.h"

/* The card that a device name stands for: "hip:sim" and "hip:sim:NAME". NULL: it is a real device's name. The
 * sentence for an unknown NAME is in *end, which is END_FINE otherwise. */
const paper_card *paper_device(const verb *verb, const char *device, int *end);
/* A card by its name; NULL with the sentence said. */
const paper_card *paper_named(const verb *verb, const char *option, const char *name, int *end);

/* Predicts the subject's call; fills what subject_print and subject_json show, in place of subject_open. */
int paper_subject(subject *subject, const paper_card *card, int batch, paper_call *out);

/* roof --model: the prediction beside what was published, as tables on stdout. */
void paper_print(const subject *subject, const paper_card *card, const profile *profile);
/* The member "prediction": the card, predicted_ms, floor_ms, samples_per_s, published_ms and
 * published_samples_per_s where others published this call, and lists of stages and operations: name,
 * predicted_ms, published_ms, floor_ms, launches, gflop, mb. */
json_t *paper_json(const subject *subject, const paper_card *card, const profile *profile);

#endif
