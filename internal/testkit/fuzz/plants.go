package main

// plants are bugs that programmers make: a bound that is forgotten, a case that
// is overlooked, an error that is taken for an answer. Each target has at least
// one that none of its seeds shows.
var plants = []plant{
	{
		target: "internal/calibration.FuzzParseCache", about: "takes any name for an algorithm",
		file: "internal/calibration/cache.go", old: "if !slices.Contains(tokens, c.Token) {", new: "if token == \"\" {",
	},
	{
		target: "internal/config.FuzzParse", about: "expects a value after the equals sign",
		file: "internal/config/override.go", old: "if len(doc.Content) == 1 {\n\t\tvalue = doc.Content[0]\n\t}", new: "value = doc.Content[0]",
	},
	{
		target: "internal/dataset.FuzzHeader", about: "expects a field that may be missing",
		file: "internal/dataset/npy.go", old: "d == nil || o == nil || s == nil", new: "d == nil || s == nil",
	},
	{
		target: "internal/dataset.FuzzOrientation", about: "takes any number for an orientation",
		file: "internal/dataset/orientation.go", old: "if found < 1 || found > 8 {", new: "if found < 1 {",
	},
	{
		target: "internal/gate.FuzzJUnit", about: "answers an unknown encoding with no reader",
		file: "internal/gate/junit.go", old: "return nil, fmt.Errorf(\"encoding %q is not read; write the report in UTF-8\", label)", new: "return nil, nil",
	},
	{
		target: "internal/github.FuzzEvent", about: "takes a shorter name for its own repository",
		file: "internal/github/event.go", old: "!strings.EqualFold(ev.HeadRepo, ev.Repository)", new: "len(ev.HeadRepo) > len(ev.Repository)",
	},
	{
		target: "internal/github.FuzzReplies", about: "takes lines before the first hunk of a patch for changed ones",
		file: "internal/github/changes.go", old: `if line == 0 || text == "" {`, new: `if text == "" {`,
	},
	{
		target: "internal/onnx.FuzzOpen", about: "loses fields that it does not know",
		file: "internal/onnx/encode.go", old: "rest.SetUnknown(m.GetUnknown())", new: "",
	},
	{
		target: "internal/onnx/facts.FuzzFindings", about: "takes very large values for infinite",
		file: "internal/onnx/facts/range.go", old: "case math.IsNaN(v) || math.IsInf(v, 0):", new: "case math.IsNaN(v) || a > 1e30:",
	},
	{
		target: "internal/onnx/passes.FuzzPasses", about: "takes x-1 for x",
		file: "internal/onnx/passes/noop.go", old: `if n.Op == "Mul" || n.Op == "Div" {`, new: `if n.Op != "Add" {`,
	},
	{
		target: "internal/onnx/passes.FuzzPassesOnFiles", about: "forgets that an axis may lie outside",
		file: "internal/onnx/graph/infer.go", old: "return int(a), a >= 0 && a < int64(rank)", new: "return int(a), a >= 0",
	},
	{
		target: "internal/ort.FuzzWire", about: "takes bytes that never came",
		file: "internal/ort/wire.go", old: "io.ReadFull(r, b[have:]); err != nil {", new: "io.ReadFull(r, b[have:]); err != nil && have > 0 {",
	},
	{
		target: "internal/provenance.FuzzDecode", about: "says nothing of a file that is invalid and listed once",
		file: "internal/provenance/files.go", old: "n := twice[w.Path]; n > 0 {", new: "n := twice[w.Path]; n > 1 {",
	},
	{
		target: "internal/tensor.FuzzChoose", about: "moves the wrong bound",
		file: "internal/tensor/quantile.go", old: "case k >= i:", new: "case k > i:",
	},
	{
		target: "internal/tensor.FuzzCompare", about: "takes a lone NaN for a pair",
		file: "internal/tensor/kernel.go", old: "case r != r && g != g && w.rule.AllowNaN:", new: "case r != r && w.rule.AllowNaN:",
	},
	{
		target: "internal/tensor.FuzzReadNPY", about: "takes elements that are not there",
		file: "internal/tensor/npy.go", old: "b := make([]byte, n)\n\t\t_, err := io.ReadFull(r, b)\n\t\treturn b, shortRead(err)", new: "b := make([]byte, n)\n\t\t_, _ = io.ReadFull(r, b)\n\t\treturn b, nil",
	},
	{
		target: "internal/tensor.FuzzReadNPZ", about: "believes the length of a string",
		file: "internal/tensor/npz.go", old: "n > uint64(len(b)-4)", new: "n > 1<<32",
	},
	{
		target: "internal/triton/kserve.FuzzGRPCReply", about: "counts the outputs twice and never their contents",
		file: "internal/triton/kserve/grpc.go", old: "if len(raws) > len(m.GetOutputs()) {", new: "if len(r.Outputs) > len(m.GetOutputs()) {",
	},
	{
		target: "internal/triton/kserve.FuzzReply", about: "believes the length of a string",
		file: "internal/triton/kserve/dtype.go", old: "uint64(size) > uint64(len(rest))", new: "uint64(size) > 1<<32",
	},
	{
		target: "internal/triton/kserve.FuzzServerReplies", about: "takes any status below 300 for an answer",
		file: "internal/triton/kserve/http.go",
		old:  "min(c.o.MaxReply, maxMessage))\n\tif err != nil {\n\t\treturn nil, nil, err\n\t}\n\tif reply.StatusCode != http.StatusOK {",
		new:  "min(c.o.MaxReply, maxMessage))\n\tif err != nil {\n\t\treturn nil, nil, err\n\t}\n\tif reply.StatusCode > 299 {",
	},
	{
		target: "internal/triton/pbtxt.FuzzParse", about: "writes octal escapes of any length",
		file: "internal/triton/pbtxt/write.go", old: "`\\%03o`", new: "`\\%o`",
	},
	{
		target: "internal/triton/registry.FuzzManifest", about: "looks at the first file only",
		file: "internal/triton/registry/registry.go", old: "range m.Layers {", new: "range m.Layers[:min(1, len(m.Layers))] {",
	},
	{
		target: "internal/triton/server.FuzzEngineReply", about: "looks at two of three zeros in the head of a log's frame",
		file: "internal/triton/server/log.go", old: "head[1]|head[2]|head[3] != 0", new: "head[1]|head[2] != 0",
	},
	{
		target: "internal/worker.FuzzReply", about: "takes a reply that was cut for a whole one",
		file: "internal/worker/protocol.go", old: "return nil, errReplyCut", new: "return line, nil",
	},
	{
		target: "report.FuzzDecode", about: "expects a row where there are points",
		file: "report/markdown.go", old: "if worst != nil {", new: "if len(val.Points) > 0 {",
	},
}
