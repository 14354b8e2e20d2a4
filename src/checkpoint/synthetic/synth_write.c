/* Writes a synthetic checkpoint's weights to safetensors files, one or several. */
#include "checkpoint/synthetic/synth_write.h"

#include <stdlib.h>

#include "base/json.h"
#include "base/report.h"
#include "checkpoint/presets.h"
#include "checkpoint/synthetic/outliers.h"
#include "checkpoint/synthetic/synth.h"
#include "checkpoint/tensor_names.h"

/* Metadata: the format as torch's tools expect it, and the sizes; the tensors' shapes give all but the number
 * of vision heads. */
static json_t *make_metadata(const openpi_dims *dims) {
    json_t *object = dims_json(dims);
    char *text = object ? json_text(object, JSON_COMPACT) : NULL;
    json_t *metadata = text ? json_pack("{s:s,s:s}", "format", "pt", "openpi_dims", text) : NULL;
    json_decref(object);
    free(text);
    return metadata;
}

openpi_status synth_write_weights(const openpi_synthetic *synthetic, const char *folder, uint64_t shard_bytes,
                                  pool *pool, safetensors_created created, void *created_user,
                                  openpi_progress progress, void *progress_user, openpi_error *error) {
    tensors *tensors;
    TRY(tensors_synthetic(synthetic, &tensors, error));
    int count = tensors_count(tensors);
    const tensor **list = malloc((size_t)count * sizeof *list);
    safetensors_order order = {.folder = folder,
                               .list = list,
                               .sources = list,
                               .count = count,
                               .from = tensors,
                               .prefix = synthetic->lerobot ? LEROBOT_PREFIX : "",
                               .metadata = make_metadata(&synthetic->dims),
                               .shard_bytes = shard_bytes,
                               .pool = pool,
                               .created = created,
                               .created_user = created_user,
                               .progress = progress,
                               .progress_user = progress_user};
    openpi_status status = outliers_plant(tensors, synthetic, error);
    if (!order.metadata || !list)
        status = report_no_memory(error, (size_t)count * sizeof *list, "writing weights");
    for (int i = 0; status == OPENPI_OK && i < count; i++) list[i] = tensors_at(tensors, i);
    if (status == OPENPI_OK) status = safetensors_write(&order, error);
    free(list);
    json_decref(order.metadata);
    tensors_close(tensors);
    return status;
}
