package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
)

// described writes a plan of four bytes and its description.
func described(t *testing.T, plan string) *Description {
	t.Helper()
	if err := os.WriteFile(plan, []byte("plan"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := description()
	if err := d.Write(plan); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestADescriptionIsReadBesideItsPlan(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"model.plan", "digits.fp16.plan"} {
		want := described(t, filepath.Join(dir, name))
		if !strings.HasPrefix(string(want.PlanDigest), "sha256:") {
			t.Errorf("the digest is %q", want.PlanDigest)
		}
		got, err := ReadDescription(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got.Unchecked() != "" {
			t.Error(got.Unchecked())
		}
	}
	for _, path := range []string{dir, filepath.Join(dir, DescriptionFile)} {
		if _, err := ReadDescription(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := DescriptionBeside(filepath.Join(dir, "digits.fp16.plan"), filepath.Join(dir, DescriptionFile)); err != nil {
		t.Errorf("a plan of another name: %v", err)
	}
}

func TestADescriptionWithoutADigestSaysWhatIsNotChecked(t *testing.T) {
	plan := filepath.Join(t.TempDir(), PlanFile)
	d := described(t, plan)
	d.PlanDigest = ""
	text, err := json.Marshal(d)
	if err == nil {
		err = os.WriteFile(filepath.Join(filepath.Dir(plan), DescriptionFile), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadDescription(plan)
	if err != nil || !strings.Contains(got.Unchecked(), "plan_digest") {
		t.Errorf("%v, %+v", err, got)
	}
}

func TestTheDigestThatTheStoreKnowsIsTaken(t *testing.T) {
	dir := t.TempDir()
	d := described(t, filepath.Join(dir, PlanFile))
	a := artifact.Artifact{Dir: dir, Record: artifact.Record{Kind: artifact.Engine, Files: []artifact.File{{Path: PlanFile, Digest: d.PlanDigest}}}}
	// Other bytes of the same size: only hashing would find them, and the store has.
	if err := os.WriteFile(filepath.Join(dir, PlanFile), []byte("nalp"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := DescriptionOf(a); err != nil {
		t.Errorf("it was hashed again: %v", err)
	}
	a.Files[0].Digest = artifact.Digest("sha256:" + strings.Repeat("0", 64))
	if _, err := DescriptionOf(a); failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "plan_digest") {
		t.Errorf("another plan: %v", err)
	}
	a.Files = nil
	if _, err := DescriptionOf(a); err == nil {
		t.Error("without a digest of the store nothing was hashed")
	}
}

func TestWhatIsNoPlanIsSaidToBeNone(t *testing.T) {
	dir := t.TempDir()
	described(t, filepath.Join(dir, PlanFile))
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(syscall.Mkfifo(at("pipe.plan"), 0o600), os.Symlink("nowhere", at("dangling.plan")), os.Mkdir(at("folder"), 0o700), os.Mkdir(at("folder/model.plan"), 0o700),
		os.WriteFile(at("lonely.plan"), []byte("plan"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		at("absent.plan"): "there is no " + at("absent.plan"), at("dangling.plan"): "there is no", at("pipe.plan"): "a named pipe",
		at("folder"): "is a folder", at("lonely.plan"): "lonely.json", "": "is empty", at("lonely.plan/x.plan"): "not a directory",
	} {
		_, err := ReadDescription(path)
		e, ok := errors.AsType[*failure.Error](err)
		if !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", path, err, want)
		}
		if code := failure.CodeOf(err); code != failure.Artifact && path != "" {
			t.Errorf("%q: exit code %d", path, code)
		}
		if ok && e.Hint == "" && !strings.Contains(want, "not a directory") {
			t.Errorf("%q: no hint", path)
		}
	}
}

// A row changes the good description; want is in the error.
var contradictions = map[string]struct {
	change func(map[string]any)
	want   string
}{
	"a direction that is none":        {set("tensors.0.io", "sideways"), `tensors.0.io: "sideways" is not one of input, output`},
	"no output":                       {set("tensors.1.io", "input"), "tensors: lists no output"},
	"no tensors":                      {set("tensors", []any{}), "tensors: lists no tensors"},
	"tensors of null":                 {set("tensors", nil), "tensors: lists no tensors"},
	"two tensors of one name":         {set("tensors.1.name", "x"), `tensors.1.name: "x" is also the name of tensors.0`},
	"a tensor without a name":         {set("tensors.1.name", ""), "tensors.1.name: is empty"},
	"a name with an escape sequence":  {set("tensors.1.name", "y\x1b[2J"), `tensors.1.name: "y\x1b[2J" holds a control character`},
	"a data type that is none":        {set("tensors.1.dtype", "complex"), `tensors.1.dtype: "complex" is no data type`},
	"a data type that is missing":     {without("tensors.1.dtype"), "tensors.1.dtype: is missing"},
	"a size below -1":                 {set("tensors.1.dims.1", -5), "tensors.1.dims.1: -5 is no size"},
	"a size of 64 bits":               {set("tensors.1.dims.1", int64(1<<63-1)), "tensors.1.dims.1: 9223372036854775807 is no size"},
	"nine dimensions":                 {set("tensors.1.dims", []any{1, 1, 1, 1, 1, 1, 1, 1, 1}), "tensors.1.dims: has 9 dimensions"},
	"dims that are missing":           {without("tensors.1.dims"), "tensors.1.dims: is missing"},
	"dims of null":                    {set("tensors.1.dims", nil), "tensors.1.dims: want a list, got null"},
	"a place that is none":            {set("tensors.1.location", "moon"), `tensors.1.location: "moon" is not one of device, host`},
	"no profile":                      {set("profiles", []any{}), "profiles: is empty, but x is dynamic"},
	"a profile of null":               {set("profiles", nil), "profiles: is empty, but x is dynamic"},
	"a profile of another input":      {set("profiles.1", map[string]any{"z": map[string]any{"min": []any{1}, "opt": []any{1}, "max": []any{1}}}), "profiles.1: does not name x"},
	"a profile of an output":          {set("profiles.0.y", map[string]any{"min": []any{1, 2}, "opt": []any{1, 2}, "max": []any{1, 2}}), "profiles.0.y: no input of the plan has this name"},
	"min above opt":                   {set("profiles.0.x.min.0", 3), "profiles.0.x.min.0: min 3 is above opt 2"},
	"opt above max":                   {set("profiles.0.x.opt.0", 9), "profiles.0.x.opt.0: opt 9 is above max 4"},
	"a max that wraps":                {set("profiles.0.x.max.0", int64(1<<32+1)), "profiles.0.x.max.0: 4294967297 is no size; want 0 to 2147483647"},
	"a max of 64 bits":                {set("profiles.0.x.max.0", int64(1<<63-1)), "profiles.0.x.max.0: 9223372036854775807 is no size"},
	"a size beyond 64 bits":           {set("profiles.0.x.max.0", json.Number("9223372036854775808")), "profiles.0.x.max.0: want a whole number of 64 bits"},
	"a negative size":                 {set("profiles.0.x.min.0", -1), "profiles.0.x.min.0: -1 is no size"},
	"a range of another rank":         {set("profiles.0.x.max", []any{4}), "profiles.0.x.max: has 1 dimensions, but x has 2"},
	"a range without opt":             {without("profiles.0.x.opt"), "profiles.0.x.opt: is missing"},
	"a fixed size that a range bends": {set("profiles.0.x.max.1", 5), "profiles.0.x.max.1: 5 is not the size 4 that x is fixed to there"},
	"a precision that is none":        {set("precision", "fp7"), `precision: "fp7" is not one of fp32, fp16, bf16, int8`},
	"no precision":                    {without("precision"), "precision: is missing"},
	"a typing that is none":           {set("typing", "loose"), `typing: "loose" is not one of strong, weak`},
	"a compatibility that is none":    {set("hardware_compatibility", "all"), `hardware_compatibility: "all" is not one of`},
	"a fruit for a release":           {set("tensorrt", "banana"), `tensorrt: "banana" is no release`},
	"a release and a fruit":           {set("tensorrt", "8.6.1/banana"), `tensorrt: "8.6.1/banana" is no release`},
	"no release":                      {without("tensorrt"), "tensorrt: is missing"},
	"a driver that is none":           {set("driver", "new"), `driver: "new" is no release`},
	"a CUDA release that is none":     {set("cuda_driver", "thirteen"), `cuda_driver: "thirteen" is no release`},
	"a capability that is none":       {set("compute_capability", "sm_90"), `compute_capability: "sm_90" is none`},
	"no GPU":                          {set("gpu", ""), "gpu: is empty"},
	"a GPU that moves the cursor":     {set("gpu", "H200\x1b[1A"), `gpu: "H200\x1b[1A" holds a control character`},
	"a size that is not the plan's":   {set("plan_bytes", 5), "plan_bytes: is 5, but model.plan has 4 bytes"},
	"a size below 0":                  {set("plan_bytes", -1), "plan_bytes: is -1, but model.plan has 4 bytes"},
	"no size":                         {without("plan_bytes"), "plan_bytes: is missing"},
	"a digest that is none":           {set("plan_digest", "sha256:abc"), `plan_digest: "sha256:abc" is no digest`},
	"a digest of nothing":             {set("plan_digest", ""), "plan_digest: is empty"},
	"the digest of another plan":      {set("plan_digest", "sha256:"+strings.Repeat("a", 64)), "plan_digest: is sha256:" + strings.Repeat("a", 64)},
	"time that ran backwards":         {set("build_seconds", -1), "build_seconds: -1 is below 0"},
	"memory below 0":                  {set("device_memory_bytes", -1), "device_memory_bytes: -1 is below 0"},
	"a key that nobody knows":         {set("format", "x"), "format: is no key that is known here"},
	"text for sizes":                  {set("tensors.0.dims", "two"), `tensors.0.dims: want a list, got text "two"`},
}

// set changes a key, by its dotted path, and without removes one.
func set(path string, value any) func(map[string]any) {
	return func(top map[string]any) { put(top, strings.Split(path, "."), value, false) }
}

func without(path string) func(map[string]any) {
	return func(top map[string]any) { put(top, strings.Split(path, "."), nil, true) }
}

func put(at any, path []string, value any, remove bool) {
	switch x := at.(type) {
	case map[string]any:
		switch {
		case len(path) > 1:
			put(x[path[0]], path[1:], value, remove)
		case remove:
			delete(x, path[0])
		default:
			x[path[0]] = value
		}
	case []any:
		var i int
		_, _ = fmt.Sscan(path[0], &i)
		if len(path) > 1 {
			put(x[i], path[1:], value, remove)
		} else {
			x[i] = value
		}
	}
}

func TestADescriptionThatContradictsItselfOrThePlanIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, DescriptionFile)
	described(t, filepath.Join(dir, PlanFile))
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range contradictions {
		t.Run(name, func(t *testing.T) {
			tree := map[string]any{}
			d := json.NewDecoder(bytes.NewReader(good))
			d.UseNumber()
			if err := d.Decode(&tree); err != nil {
				t.Fatal(err)
			}
			c.change(tree)
			text, err := json.MarshalIndent(tree, "", " ")
			if err == nil {
				err = os.WriteFile(path, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = ReadDescription(dir)
			e, ok := errors.AsType[*failure.Error](err)
			if !ok || e.Code != failure.Artifact || e.Hint == "" {
				t.Fatalf("got %v, want exit code 11 with a hint", err)
			}
			all := e.Error()
			for _, d := range e.Details {
				all += "\n" + d.Label + ": " + d.Value
			}
			if !strings.Contains(all, c.want) || !strings.Contains(all, path+":") {
				t.Errorf("got %s\nwant %s, with file and line", all, c.want)
			}
			if strings.Contains(all, "\x1b") || strings.Contains(all, "Go ") {
				t.Errorf("raw: %q", all)
			}
		})
	}
	for text, want := range map[string]string{"": "the file is empty", "null": "got null", "{\n\"tensorrt\": ": ":2: engine description: not JSON"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadDescription(dir); failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAnEmptyPlanIsNone(t *testing.T) {
	plan := filepath.Join(t.TempDir(), PlanFile)
	d := described(t, plan)
	if err := os.Truncate(plan, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadDescription(plan); failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "model.plan, which it describes, is empty") {
		t.Errorf("got %v", err)
	}
	if err := d.Write(plan); failure.CodeOf(err) != failure.Build {
		t.Errorf("it was described: %v", err)
	}
}

func TestABuildDoesNotWriteWhatWouldBeRefused(t *testing.T) {
	plan := filepath.Join(t.TempDir(), PlanFile)
	d := described(t, plan)
	path := filepath.Join(filepath.Dir(plan), DescriptionFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	d.Tensors[1].DType = "DataType.FP4"
	if err := d.Write(plan); failure.CodeOf(err) != failure.Build || !strings.Contains(err.Error(), "DataType.FP4") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it was written")
	}
}

// What the real child was seen to say of plans on a GPU.
func TestWhatTensorRTSaysOfItsPlansIsTaken(t *testing.T) {
	fixed := []int64{16, 64}
	for name, change := range map[string]func(*Description){
		"a plan of fixed shapes has a profile of its own": func(d *Description) {
			d.Tensors[0].Dims, d.Profiles = fixed, []Profile{{"x": {Min: fixed, Opt: fixed, Max: fixed}}}
		},
		"or none that is described": func(d *Description) { d.Tensors[0].Dims, d.Profiles = fixed, nil },
		"values of a shape tensor in host memory have no range of shapes": func(d *Description) {
			d.Tensors = append(d.Tensors, Tensor{Name: "s", IO: "input", DType: "int64", Dims: []int64{-1}, ShapeTensor: true, Location: "host"})
		},
		"a scalar":                      func(d *Description) { d.Tensors[1].Dims = []int64{} },
		"a package of a release":        func(d *Description) { d.TensorRT = "10.15.1.29.post1" },
		"a release candidate":           func(d *Description) { d.TensorRT = "11.0.0rc1" },
		"a driver of three numbers":     func(d *Description) { d.Driver = "580.159.04" },
		"no driver":                     func(d *Description) { d.Driver, d.CUDADriver = "", "" },
		"an outcome of unknown size":    func(d *Description) { d.Tensors[1].Dims = []int64{-1, -1} },
		"an empty batch":                func(d *Description) { d.Profiles[0]["x"] = Range{[]int64{0, 4}, []int64{1, 4}, []int64{4, 4}} },
		"a data type of newer hardware": func(d *Description) { d.Tensors[1].DType = "float8e4m3fn" },
	} {
		d := description()
		change(d)
		plan := filepath.Join(t.TempDir(), PlanFile)
		if err := os.WriteFile(plan, []byte("plan"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.Write(plan); err != nil {
			e, _ := errors.AsType[*failure.Error](err)
			t.Errorf("%s: %v %v", name, err, e)
			continue
		}
		if _, err := ReadDescription(plan); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
