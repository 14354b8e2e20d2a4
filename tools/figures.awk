# Prints a page with the text of every marked block computed anew from JSON files. tools/figures and tools/gpu-check call it:
# awk -v tree=PROJECT -v results=PROJECT/docs/results -f figures.awk PAGE
#
#   <!-- figure: FILE PATH FORMAT [FACTOR] -->9.60<!-- end -->      one value, anywhere in a line
#   <!-- figures: NAME FILE... -->  lines  <!-- end -->             a table or a sentence, see render()
#
# FILE: a JSON file without ".json", below results, or below tree where it begins with best/ or tune/. PATH: device.p50_ms, stages[vision].p50_ms:
# an entry of a list is named by its index from 0, by its name (stages[vision], climb[fused-qkv]) or as batches[batch=64].
# FORMAT: printf's. FACTOR: the value is multiplied by it. A line does not begin with a mark of one value: Markdown would take it for HTML. What cannot be computed is one sentence on stderr, and the status is 1.

function complain(sentence) {
    print page ": " sentence >"/dev/stderr"
    failed = 1
}

# ---- JSON: value[FILE, PATH] and size[FILE, PATH] of lists ----

function token(    t) {
    for (;;) {
        sub(/^[ \t\r]+/, "", pending)
        if (pending != "") break
        if ((getline pending <json_path) <= 0) return ""
    }
    if (match(pending, /^"([^"\\]|\\.)*"/) || match(pending, /^[][{}:,]/) || match(pending, /^[-+.0-9A-Za-z]+/)) {
        t = substr(pending, 1, RLENGTH)
        pending = substr(pending, RLENGTH + 1)
        return t
    }
    return ""
}

function unquoted(t) { return substr(t, 2, length(t) - 2) }

# Reads the value that begins with token t. 0: the text is not JSON.
function json_value(file, path, t,    key, i) {
    if (t == "{") {
        for (t = token(); t != "}"; ) {
            if (t !~ /^"/ || token() != ":") return 0
            key = unquoted(t)
            if (!json_value(file, path == "" ? key : path "." key, token())) return 0
            t = token()
            if (t == ",") t = token()
            else if (t != "}") return 0
        }
        return 1
    }
    if (t == "[") {
        i = 0
        for (t = token(); t != "]"; i++) {
            if (!json_value(file, path "[" i "]", t)) return 0
            t = token()
            if (t == ",") t = token()
            else if (t != "]") return 0
        }
        size[file, path] = i
        return 1
    }
    if (t !~ /^["-]|^[0-9]|^true$|^false$|^null$/) return 0
    value[file, path] = t ~ /^"/ ? unquoted(t) : t
    return 1
}

function load(file) {
    if (file in loaded) return loaded[file]
    json_path = (file ~ /^(best|tune)\// ? tree : results) "/" file ".json"
    pending = ""
    loaded[file] = json_value(file, "", token()) && token() == ""
    close(json_path)
    if (!loaded[file]) complain(json_path ": missing, or not JSON")
    return loaded[file]
}

# stages[vision].p50_ms -> stages[1].p50_ms
function place(file, path,    list, key, rest, member, i) {
    if (!match(path, /\[[^]]*\]/)) return path
    list = substr(path, 1, RSTART - 1)
    key = substr(path, RSTART + 1, RLENGTH - 2)
    rest = substr(path, RSTART + RLENGTH)
    if (key ~ /^[0-9]+$/) return path
    member = list == "batches" ? "batch" : list == "stages" ? "name" : "switch"
    for (i = 0; i < size[file, list]; i++)
        if (value[file, list "[" i "]." member] == key || member "=" value[file, list "[" i "]." member] == key)
            return list "[" i "]" rest
    return path
}

# A value, or "null": where the file says so for it or for what holds it, or where a rung of a ladder does not apply.
function get(file, path,    above) {
    if (!load(file)) return "null"
    path = place(file, path)
    if ((file, path) in value) return value[file, path]
    above = path
    sub(/\.[^.]*$/, "", above)
    if (value[file, above] == "null" || value[file, above ".applies"] == "false") return "null"
    complain(file ".json has no " path)
    return "null"
}

function number(file, path, format, factor,    v) {
    v = get(file, path)
    if (v == "null") return "–"
    if (v !~ /^-?[0-9.]+([eE][-+]?[0-9]+)?$/) complain(file ".json: " path " is \"" v "\", expected a number")
    return sprintf(format, v * factor)
}

# ---- what blocks hold ----

function variant(file) { return get(file, "model.variant") == "pi05" ? "π0.5" : "π0" }

function plural(count, word) { return count " " word (count == 1 ? "" : "s") }

# Which run: "π0, 1 camera, horizon 50", only what differs from the published workload.
function run_name(file,    text, cameras, prompt) {
    text = variant(file)
    cameras = gsub(/1/, "1", value[file, "workload.cameras"])
    prompt = get(file, "workload.prompt")
    if (cameras != 3) text = text ", " plural(cameras, "camera")
    if (get(file, "workload.horizon") != 10) text = text ", horizon " get(file, "workload.horizon")
    if (get(file, "workload.changing_prompts") == "true") text = text ", " get(file, "runs") " calls of 1 to " prompt " prompt tokens"
    else if (prompt != 20) text = text ", " prompt " prompt tokens"
    if (get(file, "machine.path") == "portable") text = text ", portable kernels"
    if (get(file, "machine.without") != "") text = text ", without " get(file, "machine.without")
    return text
}

function machine_line(file,    text) {
    text = get(file, "machine.hardware") ", " get(file, "machine.path") " kernels, " get(file, "machine.dtype")
    text = text ". openpi " get(file, "version") " at revision " substr(get(file, "revision"), 1, 12) ", " substr(get(file, "date"), 1, 10) "."
    return text
}

function percent(file, path,    v) {
    v = get(file, path)
    return v == "null" ? "–" : sprintf("%.1f %%", v * 100)
}

function bench(file,    text, i, b, n, s) {
    text = variant(file) " on " machine_line(file) "\n" get(file, "warmup") " warm-up and " get(file, "runs") " measured runs; roofs of the same run: "
    text = text number(file, "roofs.bf16_tflops", "%.0f", 1) " TFLOP/s, read " number(file, "roofs.read_gbs", "%.0f", 1) " GB/s.\n\n"
    text = text "| ms | mean | std | min | max | p50 | p95 | p99 | p99/p50 | of the roof |\n|---|---|---|---|---|---|---|---|---|---|\n"
    n = split("host device", b, " ")
    for (i = 1; i <= n; i++) {
        text = text "| " b[i]
        s = "mean_ms std_ms min_ms max_ms p50_ms p95_ms p99_ms p99_p50_ratio"
        text = text row(file, b[i], s) " | " percent(file, b[i] ".roof_ratio") " |\n"
    }
    text = text "\n| stage | p50 ms | floor ms | TFLOP/s | GB/s | of the roof | bound |\n|---|---|---|---|---|---|---|\n"
    for (i = 0; i < size[file, "stages"]; i++) {
        s = "stages[" i "]"
        if (value[file, s ".floor_ms"] == "null") continue
        text = text "| " get(file, s ".name") row(file, s, "p50_ms floor_ms") " | " number(file, s ".tflops", "%.1f", 1)
        text = text " | " number(file, s ".gbs", "%.1f", 1) " | " percent(file, s ".roof_ratio") " | " get(file, s ".bound") " |\n"
    }
    return text "\nMemory asked for: " number(file, "memory.asked_bytes", "%.2f", 1e-9) " GB (weights " \
        number(file, "memory.weight_bytes", "%.2f", 1e-9) ", session " number(file, "memory.session_bytes", "%.3f", 1e-9) \
        "). Energy: " number(file, "energy.inference_j", "%.2f", 1) " J an inference, " number(file, "energy.average_w", "%.0f", 1) " W.\n"
}

function row(file, path, members,    m, n, i, text) {
    n = split(members, m, " ")
    for (i = 1; i <= n; i++) text = text " | " number(file, path "." m[i], "%.3f", 1)
    return text
}

function batches(file,    text, i, b, device, first, count) {
    text = run_name(file) " on " machine_line(file) "\n\n"
    text = text "| batch | device p50 ms | host p50 ms | ms a sample | samples/s on the device | gain |\n|---|---|---|---|---|---|\n"
    for (i = 0; i < size[file, "batches"]; i++) {
        b = "batches[" i "]"
        count = get(file, b ".batch")
        device = get(file, b ".device.p50_ms")
        if (!i) first = count / device
        text = text "| " count " | " sprintf("%.3f", device) " | " number(file, b ".host.p50_ms", "%.3f", 1) " | "
        text = text sprintf("%.3f | %.1f | %.2f |\n", device / count, count * 1000 / device, count / device / first)
    }
    return text
}

# p50 and samples a second, of a batch at a boundary: device or host.
function timed(file, b, boundary,    ms) {
    ms = get(file, b "." boundary ".p50_ms")
    return sprintf("%.3f | %.1f", ms, get(file, b ".batch") * 1000 / ms)
}

# A row a run and batch, of all the files named. Clock, watts and joules are those of back-to-back calls.
function runs(files, n,    i, j, text, b) {
    text = "| what | device p50, ms | samples/s | host p50, ms | samples/s | MHz | W | J an inference |\n|---|---|---|---|---|---|---|---|\n"
    for (i = 1; i <= n; i++) {
        if (!load(files[i])) continue
        for (j = 0; j < size[files[i], "batches"]; j++) {
            b = "batches[" j "]"
            text = text "| " run_name(files[i]) ", batch " get(files[i], b ".batch") " | " timed(files[i], b, "device") " | "
            text = text timed(files[i], b, "host") " | " number(files[i], b ".energy.core_mhz", "%.0f", 1) " | "
            text = text number(files[i], b ".energy.average_w", "%.0f", 1) " | "
            text = text number(files[i], b ".energy.inference_j", "%.2f", 1) " |\n"
        }
    }
    return text
}

function rungs(file, list, member, ratio, sign, factor,    i, e, text) {
    for (i = 0; i < size[file, list]; i++) {
        e = list "[" i "]"
        text = text "| " (get(file, e ".switch") == "null" ? "all off" : sign "`" get(file, e ".switch") "`")
        if (get(file, e ".applies") == "false") {
            text = text " | n/a: " get(file, e ".reason") " | | | | | | | |\n"
            continue
        }
        text = text " | " number(file, e ".p50_ms", "%.3f", 1) " | " (get(file, e ".switch") == "null" ? "–" : number(file, e "." member, "%.3f", 1))
        text = text " | " number(file, e "." ratio, "%.2f", 1) " | " number(file, e ".deviation_max", "%.1e", 1) " | " get(file, e ".operations")
        text = text " | " (get(file, e ".nodes") > 0 ? get(file, e ".nodes") : "–")
        text = text " | " number(file, e ".weight_bytes", "%.1f", 1e-6) " | " number(file, e ".session_bytes", "%.1f", 1e-6) " |\n"
    }
    return text
}

function ladder(file,    text, end) {
    end = " | deviation | operations | nodes | weights MB | session MB |\n|---|---|---|---|---|---|---|---|---|\n"
    text = variant(file) " on " machine_line(file) "\nMedian of " get(file, "runs") " calls from host to host.\n\n"
    text = text "From all off to all on, " number(file, "foot_ms", "%.3f", 1) " → " number(file, "top_ms", "%.3f", 1) " ms, "
    text = text number(file, "total_ratio", "%.2f", 1) " times:\n\n| rung | ms | gain ms | so far" end
    text = text rungs(file, "climb", "gain_ms", "total_ratio", "+ ") "\nAll on but one:\n\n| without | ms | cost ms | slower" end
    text = text rungs(file, "leave_one_out", "cost_ms", "cost_ratio", "") "\nDeviation: the largest distance of an action from the last rung's; bound "
    return text number(file, "bound_max", "%.1e", 1) ", " plural(get(file, "failed"), "rung") " beyond it.\n"
}

function roof(file,    text, m, label, unit, n, i) {
    text = machine_line(file) "\n\n| ceiling | measured |\n|---|---|\n"
    n = split("bf16_tflops|f32_tflops|read_gbs|copy_gbs|core_mhz", m, "|")
    split("multiply, bf16|multiply, f32|read|copy, reading and writing counted|core clock while multiplying", label, "|")
    split("TFLOP/s|TFLOP/s|GB/s|GB/s|MHz", unit, "|")
    for (i = 1; i <= n; i++) text = text "| " label[i] " | " number(file, "roofs." m[i], "%.1f", 1) " " unit[i] " |\n"
    return text
}

function profile(file,    text, i, s) {
    text = variant(file) " on " machine_line(file) "\n\n"
    text = text "| stage | launches | ms | share | GFLOP | MB | TFLOP/s | of the roof | floor ms | bound |\n|---|---|---|---|---|---|---|---|---|---|\n"
    for (i = 0; i < size[file, "stages"]; i++) {
        s = "stages[" i "]"
        text = text "| " get(file, s ".name") " | " get(file, s ".calls") " | " number(file, s ".time_us", "%.3f", 1e-3)
        text = text " | " percent(file, s ".share_ratio") " | " number(file, s ".gflop", "%.1f", 1) " | " number(file, s ".mb", "%.0f", 1)
        text = text " | " number(file, s ".tflops", "%.1f", 1) " | " percent(file, s ".roof_ratio") " | " number(file, s ".floor_us", "%.3f", 1e-3)
        text = text " | " get(file, s ".bound") " |\n"
    }
    return text
}

# What tools/counters says of each kernel.
function counters(file,    text, i, k) {
    text = variant(file) " on " machine_line(file) "\n\n"
    text = text "| kernel | computes | launches | share | of the roof | busiest | multiprocessors | memory | L2 | L1 | occupancy | registers |\n"
    text = text "|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    for (i = 0; i < size[file, "kernels"]; i++) {
        k = "kernels[" i "]."
        text = text "| `" get(file, k "name") "` | " get(file, k "ops") " | " get(file, k "launches") " | " percent(file, k "share_ratio")
        text = text " | " percent(file, k "roof_ratio") " | " (get(file, k "bound") == "null" ? "–" : get(file, k "bound"))
        text = text " | " percent(file, k "sm_ratio") " | " percent(file, k "dram_ratio") " | " percent(file, k "l2_ratio")
        text = text " | " percent(file, k "l1_ratio") " | " percent(file, k "occupancy_ratio") " | " number(file, k "registers", "%.0f", 1) " |\n"
    }
    return text
}

# The rows of tools/serve-check.
function served(file,    text, i, e) {
    text = "| what | must | measured | holds |\n|---|---|---|---|\n"
    for (i = 0; i < size[file, "rows"]; i++) {
        e = "rows[" i "]."
        text = text "| " get(file, e "what") " | " get(file, e "must") " | " get(file, e "measured") " | " get(file, e "holds") " |\n"
    }
    return text
}

# The shapes where the table's choice wins most, and what the table holds altogether.
function tune(file, rows,    i, e, n, text, best, taken, confirmed) {
    if (!load(file)) return ""
    text = "| operation | rows x outputs x inputs | cameras | heuristic's choice | µs | table's choice | µs | gain |\n|---|---|---|---|---|---|---|---|\n"
    n = size[file, "entries"]
    for (i = 0; i < n; i++) {
        e = "entries[" i "]"
        if (value[file, e ".confirmed"] == "true") confirmed++
    }
    while (rows-- > 0) {
        best = -1
        for (i = 0; i < n; i++) {
            e = "entries[" i "]"
            if (value[file, e ".confirmed"] != "true" || (i in taken)) continue
            if (best < 0 || gain(file, i) > gain(file, best)) best = i
        }
        if (best < 0) break
        taken[best] = 1
        e = "entries[" best "]"
        text = text "| " get(file, e ".op") " | " shape(file, e) " | " (((file, e ".cameras") in value) ? value[file, e ".cameras"] : "any")
        text = text " | `" get(file, e ".heuristic") "` | " number(file, e ".heuristic_us", "%.2f", 1)
        text = text " | `" get(file, e ".choice") "` | " number(file, e ".time_us", "%.2f", 1) " | " sprintf("%.1f %% |\n", 100 * gain(file, best))
    }
    return text "\n" plural(n, "shape") " in all; " confirmed + 0 " choices were confirmed in place, for the others the heuristic's choice stays.\n"
}

function gain(file, i) { return 1 - value[file, "entries[" i "].time_us"] / value[file, "entries[" i "].heuristic_us"] }

function shape(file, e) {
    if ((file, e ".heads") in value) return get(file, e ".m") ", " get(file, e ".heads") " heads" \
        (((file, e ".keys") in value) ? ", " value[file, e ".keys"] " places" : "")
    return get(file, e ".m") " x " get(file, e ".n") (((file, e ".k") in value) ? " x " value[file, e ".k"] : "")
}

function render(part, n,    files, i) {
    if (n < 2) return complain("a block \"figures: " part[1] "\" names no file") ""
    for (i = 2; i <= n; i++) {
        if (part[1] == "tune" && i == 3) break
        if (!load(part[i])) return ""
        files[i - 1] = part[i]
    }
    if (part[1] == "bench") return bench(part[2])
    if (part[1] == "batches") return batches(part[2])
    if (part[1] == "results") return runs(files, n - 1)
    if (part[1] == "ladder") return ladder(part[2])
    if (part[1] == "roof") return roof(part[2])
    if (part[1] == "counters") return counters(part[2])
    if (part[1] == "served") return served(part[2])
    if (part[1] == "profile") return profile(part[2])
    if (part[1] == "tune") return tune(part[2], n > 2 ? part[3] : 10)
    complain("there is no block \"figures: " part[1] "\"")
    return ""
}

# ---- the page ----

{ text = text $0 "\n" }

END {
    page = FILENAME
    sub(/.*\/\.\//, "", page)
    while (match(text, /<!-- figures?: [^>]* -->/)) {
        marker = substr(text, RSTART, RLENGTH)
        if (marker ~ /figure:/ && (RSTART == 1 || substr(text, RSTART - 1, 1) == "\n")) complain("a line begins with \"" marker "\"")
        printf "%s", substr(text, 1, RSTART + RLENGTH - 1)
        text = substr(text, RSTART + RLENGTH)
        end = index(text, "<!-- end -->")
        if (!end || (match(text, /<!-- figures?: /) && RSTART < end)) {
            complain("\"" marker "\" has no \"<!-- end -->\"")
            break
        }
        inner = marker
        sub(/<!-- figures?: /, "", inner)
        sub(/ -->$/, "", inner)
        n = split(inner, part, " ")
        if (marker ~ /<!-- figures/) {
            printf "\n%s", render(part, n)
        } else if (n < 3 || n > 4) {
            complain("\"" marker "\": expected FILE PATH FORMAT [FACTOR]")
        } else {
            printf "%s", number(part[1], part[2], part[3], n > 3 ? part[4] : 1)
        }
        text = substr(text, end)
    }
    printf "%s", text
    exit failed
}
