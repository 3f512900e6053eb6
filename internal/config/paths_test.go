package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/failure"
)

// everyPath names a path at every key that takes one.
const everyPath = `model:
  name: m
  kind: checkpoint
  factory: m:build
  path: %/file
  python_path: [%/folder]
  inputs: [{name: x, shape: [batch, 4]}]
validation:
  inputs: [%/file, %/folder]
  task: {data: %/file}
tensorrt:
  timing_cache: %/file
  profiles: [{inputs: {x: {min: [1, 4], opt: [2, 4], max: [4, 4]}}}]
calibration:
  path: %/folder
  cache: %/file
triton:
  labels: {y: %/file}
`

// pathKeys are the keys of everyPath; a folder is a mistake at those that hold a file.
var pathKeys = map[string]bool{
	"model.path": true, "model.python_path.0": false, "validation.inputs.0": false, "validation.inputs.1": false, "validation.task.data": true,
	"tensorrt.timing_cache": true, "calibration.path": false, "calibration.cache": true, "triton.labels.y": true,
}

func loadPaths(t *testing.T, set ...string) (*Config, string, error) {
	t.Helper()
	dir := t.TempDir()
	err := errors.Join(os.Mkdir(filepath.Join(dir, "folder"), 0o700), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(strings.ReplaceAll(everyPath, "%", dir)), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for i := range set {
		set[i] = strings.ReplaceAll(set[i], "%", dir)
	}
	c, err := Load(filepath.Join(dir, "c.yaml"), Options{Set: set})
	return c, dir, err
}

func TestEveryPathIsLookedForAndNamedByItsKey(t *testing.T) {
	c, dir, err := loadPaths(t)
	if err != nil || c.CheckFiles(nil) != nil {
		t.Fatal(err, c.CheckFiles(nil))
	}
	// A key that is added with the tag path belongs into everyPath.
	seen := 0
	c.inputPaths(func(in inputPath) string {
		if holds, ok := pathKeys[in.key]; ok && holds == (in.holds == holdsFile) {
			seen++
		} else {
			t.Errorf("%s is not in the test, or holds something else", in.key)
		}
		return in.path
	})
	if seen != len(pathKeys) {
		t.Errorf("%d of %d paths", seen, len(pathKeys))
	}
	for key, file := range pathKeys {
		c, dir, err := loadPaths(t, key+"=%/nothing")
		if err != nil {
			t.Errorf("%s: %v; loading looks for nothing", key, err)
			continue
		}
		err = c.CheckFiles(nil)
		if want := "--set " + key + ": " + key + ": " + dir + "/nothing is not there"; failure.CodeOf(err) != failure.Artifact || err.Error() != want {
			t.Errorf("%s: got %v, want %s", key, err, want)
		}
		if p, ok := errors.AsType[Problems](err); !ok || len(p) != 1 || p[0].Path != key {
			t.Errorf("%s: problems %v", key, p)
		}
		if err := c.CheckFiles(func(k, path string) bool { return k != key && path != dir+"/nothing" }); err != nil {
			t.Errorf("%s was not asked for: %v", key, err)
		}
		_, _, err = loadPaths(t, key+"=%/folder")
		if refused := failure.CodeOf(err) == failure.Usage && strings.Contains(err.Error(), key+": ") && strings.Contains(err.Error(), "is a folder; name the file"); refused != file && key != "validation.inputs.0" {
			t.Errorf("%s: a folder: %v", key, err)
		}
		_, _, err = loadPaths(t, key+"=/dev/zero")
		if failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), "is no regular file but a device") {
			t.Errorf("%s: a device: %v", key, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "file")); err != nil {
		t.Fatal(err)
	}
	err = c.CheckFiles(nil)
	e, ok := errors.AsType[*failure.Error](err)
	if !ok || len(e.Details) != 6 || !strings.Contains(e.Message, "names 6 files that cannot be read") || e.Details[0].Label != filepath.Join(dir, "c.yaml")+":5" {
		t.Errorf("%v %+v", err, e)
	}
}

func TestAnEmptyPathIsUnsetAndAnEmptyElementIsRefused(t *testing.T) {
	for _, key := range []string{"tensorrt.timing_cache", "calibration.cache", "calibration.path"} {
		c, _, err := loadPaths(t, key+"=")
		if err != nil || c.CheckFiles(nil) != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	for key, want := range map[string]string{"model.path": "is missing", "validation.task.data": "is missing", "model.python_path.0": "is empty; name a file", "validation.inputs.1": "is empty; name a file", "triton.labels.y": "is empty; name a file"} {
		_, _, err := loadPaths(t, key+"=")
		if failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), key+": "+want) {
			t.Errorf("%s: got %v", key, err)
		}
	}
}

func TestAFileThatMayNotBeReadIsNamed(t *testing.T) {
	c, dir, err := loadPaths(t, "calibration.cache=%/file/x")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CheckFiles(nil); err == nil || !strings.Contains(err.Error(), "calibration.cache: "+dir+"/file/x cannot be read: not a directory") {
		t.Errorf("got %v", err)
	}
}

// Sizes, times and amounts of memory become numbers of fewer bits, or are
// multiplied, on their way.
func TestEveryNumberIsBounded(t *testing.T) {
	free := map[string]bool{ // seeds, limits of tolerances and budgets, and factors of pixels
		"validation.seed": true, "calibration.seed": true, "benchmark.seed": true, "model.inputs.[].range": true, "model.inputs.[].shape": true,
	}
	for _, f := range Table() {
		whole := strings.HasSuffix(f.Type, "integer") || strings.HasSuffix(f.Type, "integer or name")
		if whole && f.Max == nil && !free[f.Path] {
			t.Errorf("%s has no largest value", f.Path)
		}
	}
	for set, want := range map[string]string{
		"tensorrt.workspace_mb=9223372036854775807":                  "9223372036854775807 is not between 1 and 1048576",
		"tensorrt.memory_pools_mb.tactic_dram=4194304":               "4194304 is not between 0 and 1048576",
		"tensorrt.profiles.0.inputs.x.max=[4294967297, 16]":          "4294967297 is not between 1 and 2147483647",
		"tensorrt.profiles.0.inputs.x.max=[9223372036854775807, 1]":  "9223372036854775807 is not between 1 and 2147483647",
		"model.inputs.0.shape=[batch, 2147483648]":                   "size 2147483648 is above 2147483647",
		"model.inputs.0.shape=[batch, 99999999999999999999]":         "model.inputs.0.shape",
		"validation.points=[{x: [4294967297, 16]}]":                  "4294967297 is above 2147483647",
		"tensorrt.build_timeout_s=9223372036854775807":               "is not between 1 and 604800",
		"triton.shm_mb=17592186044416":                               "is not between 1 and 1048576",
		"triton.max_batch_size=4294967297":                           "is not between 0 and 2147483647",
		"triton.version_policy={latest: {num_versions: 4294967297}}": "want {num_versions: n} with n from 1 to 2147483647",
	} {
		_, err := Parse([]byte(small), "c.yaml", Options{Set: []string{set}})
		if got := strings.Join(problemsOf(err), "\n"); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", set, got, want)
		}
	}
}

func TestNothingIsListedTwice(t *testing.T) {
	for set, want := range map[string]string{
		"benchmark.batch_sizes=[1, 1]": "benchmark.batch_sizes.1: 1 is listed twice", "benchmark.concurrency=[4, 0x4]": "benchmark.concurrency.1: 4 is listed twice",
		"triton.dynamic_batching={preferred_batch_size: [2, 2]}": "2 is listed twice", "triton.instance_groups=[{gpus: [1, 1]}]": "1 is listed twice",
		"optimize.skip_passes=[a, a]": "a is listed twice", "validation.inputs=[a.npz, a.npz]": "a.npz is listed twice", "triton.protocols=[http, http]": "http is listed twice",
	} {
		_, err := Parse([]byte(small), "c.yaml", Options{Set: []string{set}})
		if got := strings.Join(problemsOf(err), "\n"); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", set, got, want)
		}
	}
}

func TestADeviceIsAnIndexOrAUUID(t *testing.T) {
	for device, ok := range map[string]bool{
		"0": true, "15": true, "GPU-8c0cb8d4": true, "MIG-0b2d7c1e-2c4f-5c1a": true, "MIG-GPU-8c0cb8d4/7/0": true,
		"banana": false, "": false, "-1": false, "0,1": false, "gpu-1": false, "GPU-": false, "GPU-x y": false, "cuda:0": false,
	} {
		_, err := Parse([]byte(small), "c.yaml", Options{Set: []string{"tensorrt.device=" + `"` + device + `"`}})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "tensorrt.device: \""+device+"\" is no GPU; give its index") {
			t.Errorf("%q: got %v", device, err)
		}
	}
}
