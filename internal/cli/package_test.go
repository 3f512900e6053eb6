package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/engine/enginetest"
	"github.com/trtship/trtship/internal/failure"
)

func TestPackageWritesNothingWhenSomethingDoesNotHold(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	cfg, plan := filepath.Join(dir, "trtship.yaml"), filepath.Join(dir, "p", engine.PlanFile)
	enginetest.WriteEngine(t, filepath.Dir(plan), nil)
	text := `model: {name: small, kind: onnx, path: model.onnx, inputs: [{name: x, dtype: float32, shape: [batch, 4]}]}
tensorrt: {profiles: [{inputs: {x: {min: [1, 4], opt: [2, 4], max: [4, 4]}}}]}
`
	if err := os.WriteFile(cfg, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(dir, "repository")
	nothing := func(why string) {
		t.Helper()
		if _, err := os.Lstat(output); err == nil {
			t.Errorf("%s: %s was written", why, output)
		}
	}
	_, errs := b.run(failure.Triton, "package", cfg, plan, "-o", output, "--set", `triton.config_append=batching_option { }`)
	contains(t, errs, "wrote nothing to "+output)
	nothing("a check that fails")

	description := filepath.Join(filepath.Dir(plan), engine.DescriptionFile)
	good, err := os.ReadFile(description)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{`"input"`: `"sideways"`, "-1": "-5", `"10.6.0"`: `"banana"`, `"plan_bytes": 4`: `"plan_bytes": 5`, `"sha256:`: `"sha256:0`} {
		bad := strings.Replace(string(good), from, to, 1)
		if bad == string(good) {
			t.Fatalf("no %s in %s", from, good)
		}
		if err := os.WriteFile(description, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		_, errs := b.run(failure.Artifact, "package", cfg, plan, "-o", output)
		contains(t, errs, description+":", "hint")
		nothing(to)
	}
	// A description of an older release.
	old := regexp.MustCompile(`(?m)^.*plan_digest.*\n`).ReplaceAllString(string(good), "")
	if err := os.WriteFile(description, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs = b.run(0, "package", cfg, plan)
	contains(t, errs, plan+": the description has no plan_digest")
	if err := os.WriteFile(description, good, 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs = b.run(0, "package", cfg, plan, "-o", output)
	contains(t, errs, "wrote "+filepath.Join(output, "small", "1"))
	if strings.Contains(errs, "plan_digest") {
		t.Error(errs)
	}
}
