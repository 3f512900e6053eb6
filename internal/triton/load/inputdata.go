package load

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"

	"github.com/x448/float16"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// ReadInputData reads perf_analyzer's --input-data JSON: an object whose key
// "data" is a list of steps, each an object of input name to values. Values are
// a flat list, {"content": [...], "shape": [...]} or {"b64": "..."}; shapes have
// no batch where the model has one. Each step is a request, or a row of one if
// batch is above 1.
func ReadInputData(path string, config *tritonpb.ModelConfig, batch int) ([]kserve.Request, error) {
	b, err := regular.ReadFile(path)
	if err != nil {
		return nil, failure.New(failure.Artifact, "read input data: %w", err)
	}
	steps, err := parseInputData(b)
	if err != nil {
		return nil, failure.New(failure.Usage, "read input data: %w", err).At(path)
	}
	rows := make([][]tensor.Named, len(steps))
	for i, s := range steps {
		if rows[i], err = step(s, config); err != nil {
			return nil, failure.New(failure.Usage, "read input data: step %d: %w", i, err).At(path)
		}
	}
	requests, err := gather(rows, config, max(batch, 1))
	if err != nil {
		return nil, failure.New(failure.Usage, "read input data: %w", err).At(path)
	}
	return requests, nil
}

// errList is the form that a tutorial shows and perf_analyzer does not take.
var errList = errors.New(`a list of steps; perf_analyzer's form is an object with the key "data": {"data": [ ... ]}`)

func parseInputData(b []byte) ([]map[string]json.RawMessage, error) {
	if t := bytes.TrimSpace(b); len(t) > 0 && t[0] == '[' {
		return nil, errList
	}
	var doc struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	if len(doc.Data) == 0 {
		return nil, errors.New(`the key "data" is missing or empty`)
	}
	var steps []map[string]json.RawMessage
	for _, raw := range doc.Data {
		var many []map[string]json.RawMessage // a stream of steps
		if err := json.Unmarshal(raw, &many); err == nil {
			steps = append(steps, many...)
			continue
		}
		var one map[string]json.RawMessage
		if err := json.Unmarshal(raw, &one); err != nil {
			return nil, err
		}
		steps = append(steps, one)
	}
	return steps, nil
}

func step(values map[string]json.RawMessage, config *tritonpb.ModelConfig) ([]tensor.Named, error) {
	var out []tensor.Named
	for _, in := range config.GetInput() {
		raw, ok := values[in.GetName()]
		if !ok {
			if in.GetOptional() {
				continue
			}
			return nil, fmt.Errorf("the input %s is missing", in.GetName())
		}
		t, err := value(raw, in)
		if err != nil {
			return nil, fmt.Errorf("input %s: %w", in.GetName(), err)
		}
		out = append(out, tensor.Named{Name: in.GetName(), Tensor: t})
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if !hasInput(config, name) {
			return nil, fmt.Errorf("the model has no input %s", name)
		}
	}
	return out, nil
}

func hasInput(config *tritonpb.ModelConfig, name string) bool {
	for _, in := range config.GetInput() {
		if in.GetName() == name {
			return true
		}
	}
	return false
}

// value reads one tensor without the batch.
func value(raw json.RawMessage, in *tritonpb.ModelInput) (tensor.Tensor, error) {
	d, ok := kserve.FromConfig(in.GetDataType())
	if !ok {
		return tensor.Tensor{}, fmt.Errorf("data type %s", in.GetDataType())
	}
	object := struct {
		Content json.RawMessage `json:"content"`
		Shape   []int64         `json:"shape"`
		B64     *string         `json:"b64"`
	}{}
	content := raw
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		if err := json.Unmarshal(raw, &object); err != nil {
			return tensor.Tensor{}, err
		}
		content = object.Content
		if object.B64 == nil && len(content) > 0 {
			var inner struct {
				B64 *string `json:"b64"`
			}
			if json.Unmarshal(content, &inner) == nil {
				object.B64 = inner.B64
			}
		}
	}
	shape := object.Shape
	if shape == nil {
		shape = in.GetDims()
	}
	for _, s := range shape {
		if s < 0 {
			return tensor.Tensor{}, fmt.Errorf("its shape %v is not fixed: give one with the values", shape)
		}
	}
	if object.B64 != nil {
		b, err := base64.StdEncoding.DecodeString(*object.B64)
		if err != nil {
			return tensor.Tensor{}, err
		}
		return kserve.Decode(d, shape, b) // strings carry their lengths within
	}
	t := tensor.Tensor{DType: d, Shape: shape}
	if err := fill(&t, content); err != nil {
		return t, err
	}
	_, err := kserve.Encode(t) // judges the number of elements
	return t, err
}

// fill reads a flat or nested list of values.
func fill(t *tensor.Tensor, raw json.RawMessage) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch v := token.(type) {
		case json.Delim:
			if v != '[' && v != ']' {
				return fmt.Errorf("%q among the values", v)
			}
		case json.Number:
			if err := number(t, v.String()); err != nil {
				return err
			}
		case bool:
			if t.DType != tensor.Bool {
				return fmt.Errorf("%t for %s", v, t.DType)
			}
			t.Data = append(t.Data, map[bool]byte{true: 1}[v])
		case string:
			if t.DType != tensor.String {
				return fmt.Errorf("%q for %s", v, t.DType)
			}
			t.Strings = append(t.Strings, v)
		default:
			return fmt.Errorf("%v among the values", v)
		}
	}
}

func number(t *tensor.Tensor, s string) error {
	le := binary.LittleEndian
	switch t.DType {
	case tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16:
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return err
		}
		switch t.DType {
		case tensor.Float32:
			t.Data = le.AppendUint32(t.Data, math.Float32bits(float32(f)))
		case tensor.Float64:
			t.Data = le.AppendUint64(t.Data, math.Float64bits(f))
		case tensor.Float16:
			t.Data = le.AppendUint16(t.Data, float16.Fromfloat32(float32(f)).Bits())
		default:
			t.Data = le.AppendUint16(t.Data, uint16(math.Float32bits(float32(f))>>16))
		}
		return nil
	case tensor.String:
		return fmt.Errorf("the number %s for strings", s)
	case tensor.Bool:
		t.Data = append(t.Data, map[bool]byte{true: 1}[s != "0"])
		return nil
	}
	bits := 8 * t.DType.Size()
	u, err := strconv.ParseUint(s, 10, bits)
	if t.DType[0] == 'i' {
		var i int64
		i, err = strconv.ParseInt(s, 10, bits)
		u = uint64(i)
	}
	if err != nil {
		return err
	}
	b := le.AppendUint64(nil, u)
	t.Data = append(t.Data, b[:t.DType.Size()]...)
	return nil
}

// gather makes requests of rows.
func gather(rows [][]tensor.Named, config *tritonpb.ModelConfig, batch int) ([]kserve.Request, error) {
	if config.GetMaxBatchSize() == 0 {
		if batch > 1 {
			return nil, fmt.Errorf("batch %d, and the model takes no batches", batch)
		}
		out := make([]kserve.Request, len(rows))
		for i, r := range rows {
			out[i] = kserve.Request{Model: config.GetName(), Inputs: r}
		}
		return out, nil
	}
	n := len(rows)
	if n < batch { // as perf_analyzer does: rows are used again
		n = batch
	}
	var out []kserve.Request
	for at := 0; at+batch <= n; at += batch {
		r := kserve.Request{Model: config.GetName()}
		for i := range rows[0] {
			joined, err := stack(rows, at, batch, i)
			if err != nil {
				return nil, err
			}
			r.Inputs = append(r.Inputs, joined)
		}
		out = append(out, r)
	}
	return out, nil
}

// stack joins one input of batch rows.
func stack(rows [][]tensor.Named, at, batch, input int) (tensor.Named, error) {
	first := rows[at%len(rows)][input]
	out := tensor.Named{Name: first.Name, Tensor: tensor.Tensor{DType: first.DType, Shape: append([]int64{int64(batch)}, first.Shape...)}}
	for k := range batch {
		row := rows[(at+k)%len(rows)]
		if len(row) <= input || fmt.Sprint(row[input].Shape) != fmt.Sprint(first.Shape) {
			return out, fmt.Errorf("steps %d and %d have other shapes for %s and cannot be one batch", at, at+k, first.Name)
		}
		out.Data = append(out.Data, row[input].Data...)
		out.Strings = append(out.Strings, row[input].Strings...)
	}
	return out, nil
}

// Values says what is generated for an input.
type Values struct {
	Shape []int64      // sizes without the batch; nil takes the model's dims, which must be fixed then
	Range tensor.Range // bounds of the values; empty are the type's default
}

// Generated makes count requests of random values from a seed for a loaded
// model, each of batch rows. values names inputs whose dims are not fixed or
// whose values are bounded, such as the indexes of an embedding.
func Generated(config *tritonpb.ModelConfig, batch, count int, values map[string]Values, seed int64) ([]kserve.Request, error) {
	rows := make([][]tensor.Named, count*max(batch, 1))
	for i := range rows {
		for _, in := range config.GetInput() {
			if in.GetOptional() {
				continue
			}
			t, err := generate(in, values[in.GetName()], strconv.FormatInt(seed, 10), strconv.Itoa(i))
			if err != nil {
				return nil, err
			}
			rows[i] = append(rows[i], tensor.Named{Name: in.GetName(), Tensor: t})
		}
	}
	requests, err := gather(rows, config, max(batch, 1))
	if err != nil {
		return nil, failure.New(failure.Usage, "make requests: %w", err)
	}
	return requests, nil
}

// generate makes one row of one input.
func generate(in *tritonpb.ModelInput, v Values, words ...string) (tensor.Tensor, error) {
	d, ok := kserve.FromConfig(in.GetDataType())
	if !ok {
		return tensor.Tensor{}, failure.New(failure.Usage, "input %s has the data type %s", in.GetName(), in.GetDataType())
	}
	if v.Shape == nil {
		v.Shape = in.GetDims()
	}
	for _, s := range v.Shape {
		if s < 0 {
			return tensor.Tensor{}, failure.New(failure.Usage, "input %s has the shape %v: give its sizes", in.GetName(), v.Shape)
		}
	}
	t, err := tensor.Generate(d, v.Shape, v.Range, append(append([]string{"load"}, words...), in.GetName())...)
	if err != nil {
		return t, failure.New(failure.Usage, "make values for %s: %w", in.GetName(), err)
	}
	return t, nil
}
