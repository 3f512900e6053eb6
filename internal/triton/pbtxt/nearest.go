package pbtxt

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// spellings are names that people write for a field, by message and name: what
// tutorials, other tools' configurations and old releases used.
var spellings = map[string]string{
	"ModelConfig.batching_option":             "dynamic_batching",
	"ModelConfig.batching":                    "dynamic_batching",
	"ModelConfig.dynamic_batcher":             "dynamic_batching",
	"ModelConfig.instance_groups":             "instance_group",
	"ModelConfig.instances":                   "instance_group",
	"ModelConfig.inputs":                      "input",
	"ModelConfig.outputs":                     "output",
	"ModelConfig.warmup":                      "model_warmup",
	"ModelConfig.version":                     "version_policy",
	"ModelConfig.framework":                   "platform",
	"ModelConfig.max_batch":                   "max_batch_size",
	"ModelConfig.cache":                       "response_cache",
	"ModelInput.shape":                        "dims",
	"ModelInput.datatype":                     "data_type",
	"ModelInput.dtype":                        "data_type",
	"ModelInput.type":                         "data_type",
	"ModelOutput.shape":                       "dims",
	"ModelOutput.datatype":                    "data_type",
	"ModelOutput.dtype":                       "data_type",
	"ModelOutput.type":                        "data_type",
	"ModelOutput.labels":                      "label_filename",
	"ModelInstanceGroup.gpu":                  "gpus",
	"ModelInstanceGroup.device":               "gpus",
	"ModelDynamicBatching.max_queue_delay_us": "max_queue_delay_microseconds",
	"Latest.versions":                         "num_versions",
	"Specific.version":                        "versions",
}

// elsewhere finds messages directly below m that have a field of that name, for
// fields that were written one level too high.
func elsewhere(m protoreflect.MessageDescriptor, name string) string {
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		if fd.Message() == nil || fd.IsMap() {
			continue
		}
		if fd.Message().Fields().ByName(protoreflect.Name(name)) != nil {
			return string(fd.Name())
		}
	}
	return ""
}

// unknown reports a field that does not exist and the nearest that does.
func (b *binder) unknown(m protoreflect.MessageDescriptor, f field) {
	near := spellings[string(m.Name())+"."+f.name]
	if near == "" {
		near = nearest(f.name, fieldNames(m))
	}
	hint := ""
	switch inside := elsewhere(m, f.name); {
	case near != "":
		hint = "did you mean " + near
		fd := m.Fields().ByName(protoreflect.Name(near))
		if fd.Message() != nil && !fd.IsList() && !fd.IsMap() {
			hint += fmt.Sprintf(", a message: %s { ... }", near)
			if f.value.kind == list {
				hint += ", not a list"
			}
		}
	case inside != "":
		hint = fmt.Sprintf("it belongs into %s { ... }", inside)
	default:
		hint = "fields of " + string(m.Name()) + ": " + strings.Join(fieldNames(m), ", ")
	}
	b.problem(f.pos, KindField, hint, "no field %q in %s", f.name, m.Name())
}

func fieldNames(m protoreflect.MessageDescriptor) []string {
	out := make([]string, m.Fields().Len())
	for i := range out {
		out[i] = string(m.Fields().Get(i).Name())
	}
	return out
}

// nearestEnum returns the value that was probably meant.
func nearestEnum(e protoreflect.EnumDescriptor, text string) string {
	names := make([]string, e.Values().Len())
	for i := range names {
		names[i] = string(e.Values().Get(i).Name())
	}
	up := strings.ToUpper(text)
	aliases := map[string]string{
		"FLOAT": "TYPE_FP32", "FLOAT32": "TYPE_FP32", "DOUBLE": "TYPE_FP64", "FLOAT64": "TYPE_FP64", "HALF": "TYPE_FP16",
		"FLOAT16": "TYPE_FP16", "BFLOAT16": "TYPE_BF16", "BYTES": "TYPE_STRING", "LONG": "TYPE_INT64", "INT": "TYPE_INT32",
	}
	for _, candidate := range []string{up, "TYPE_" + up, "KIND_" + up, "FORMAT_" + up, "PRIORITY_" + up, "CONTROL_" + up, aliases[strings.TrimPrefix(up, "TYPE_")]} {
		for _, n := range names {
			if n == candidate {
				return n
			}
		}
	}
	return nearest(up, names)
}

// Nearest returns the name that was probably meant by text; empty if none is near.
func Nearest(text string, names []string) string { return nearest(text, names) }

// nearest returns the name with the least edit distance, if it is near enough to
// be what was meant: a third of the length, or a common start of words.
func nearest(text string, names []string) string {
	best, at := "", len(text)/3+1
	for _, n := range names {
		d := distance(text, n)
		if d < at {
			best, at = n, d
		}
	}
	return best
}

// distance is the edit distance with transpositions (optimal string alignment).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
