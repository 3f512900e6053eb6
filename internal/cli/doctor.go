package cli

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/moby/moby/client"
	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/stage"
)

// finding is one line of doctor.
type finding struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Version string `json:"version,omitempty"`
	Detail  string `json:"detail,omitempty"` // where it is, or the cause why it is not there
	Hint    string `json:"hint,omitempty"`
}

// readiness says whether a part of the pipeline can run here.
type readiness struct {
	Part    string   `json:"part"`
	Ready   bool     `json:"ready"`
	Missing []string `json:"missing,omitempty"`
}

// diagnosis is everything that doctor found.
type diagnosis struct {
	Version  string      `json:"version"`
	OS       string      `json:"os"`
	CPU      string      `json:"cpu"`
	Cores    int         `json:"cores"`
	Findings []finding   `json:"findings"`
	Parts    []readiness `json:"parts"`
}

// required are the names that --require takes.
var required = []string{"python", "torch", "onnx", "onnxscript", "onnxruntime", "tritonserver", "docker", "gpu", "tensorrt", "tensorrt-builder", "store"}

// parts of the pipeline and what each needs.
var parts = []struct {
	name  string
	needs []string
}{
	{"inspect, export (PyTorch models)", []string{"torch", "onnx"}},
	{"export with export.dynamo", []string{"torch", "onnx", "onnxscript"}},
	{"validate, optimize, calibrate, quantize, benchmark onnx", []string{"onnxruntime"}},
	{"package", nil},
	{"serve, served, validate triton, benchmark triton", []string{"tritonserver"}},
	{"serve in a container (triton.image)", []string{"docker"}},
	{"build", []string{"gpu", "tensorrt", "tensorrt-builder"}},
	{"validate_engine, benchmark engine", []string{"gpu", "tensorrt"}},
}

func newDoctorCmd(a *app) *cobra.Command {
	var want []string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can run, and why not",
		Long: `doctor tries the tools that the stages need and says where they are, or the real cause why
they cannot be used: it imports the Python packages, asks NVML and CUDA for the GPUs, and starts
TensorRT on the first one, each in a child that may die or hang. With --require it exits with 3
unless what is named is usable.`,
		GroupID: "setup",
		Args:    positional(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("require") && len(want) == 0 { // an empty variable of a shell must not pass
				return failure.New(failure.Usage, "--require is empty").WithHint("name some of %s", strings.Join(required, ", "))
			}
			for _, w := range want {
				if !slices.Contains(required, w) {
					return failure.New(failure.Usage, "--require %q is not one of %s", w, strings.Join(required, ", "))
				}
			}
			return a.doctor(cmd.Context(), want)
		},
	}
	c.Flags().StringSliceVar(&want, "require", nil, "exit with 3 unless these `tools` are usable: "+strings.Join(required, ", "))
	return c
}

func (a *app) doctor(ctx context.Context, want []string) error {
	d := a.diagnose(ctx)
	if ctx.Err() != nil { // what was not answered for that reason is not missing
		return context.Cause(ctx)
	}
	if a.json {
		if err := a.printJSON(d); err != nil {
			return err
		}
	} else {
		a.printDiagnosis(d)
	}
	var e *failure.Error
	for _, f := range d.Findings {
		if f.OK || !slices.Contains(want, f.Name) {
			continue
		}
		if e == nil {
			e = failure.New(failure.Missing, "this machine lacks what --require names")
		}
		e.With(f.Name, "%s", strings.TrimSpace(f.Detail+"\n"+f.Hint))
	}
	if e != nil {
		return e
	}
	return nil
}

// diagnose looks at everything once.
func (a *app) diagnose(ctx context.Context) diagnosis {
	m := a.machine()
	d := diagnosis{Version: a.version, OS: osName(), CPU: cpuName(), Cores: cores()}
	add := func(name, version, detail string, err error) {
		f := finding{Name: name, OK: err == nil, Version: version, Detail: detail}
		if err != nil {
			f.Detail, f.Hint = firstLine(err)
		}
		d.Findings = append(d.Findings, f)
	}
	python, version, err := m.Interpreter(ctx)
	add("python", version, python, err)
	packages := []string{"torch", "onnx", "onnxscript"}
	versions, errs := m.importedAll(ctx, packages...)
	for i, name := range packages {
		add(name, versions[i], "", errs[i])
	}
	lib, err := m.ORT(ctx)
	add("onnxruntime", lib.Version, strings.TrimSpace(lib.Path+" ("+lib.Source+")"), err)
	triton, err := m.Triton(ctx, nil)
	add("tritonserver", triton.Version, triton.Binary, err)
	dockerVersion, err := docker(ctx)
	add("docker", dockerVersion, "", err)
	gpus, noGPU := m.GPUs(ctx)
	var names []string
	driver := ""
	for _, g := range gpus {
		names = append(names, g.String())
		driver = g.Driver
	}
	add("gpu", driver, strings.Join(names, "\n"), noGPU)
	trt, err := m.tensorrtFor(ctx, gpus...)
	if err == nil && noGPU == nil {
		err = m.startTensorRT(ctx)
	}
	add("tensorrt", trt, "", err)
	if err == nil {
		err = m.trt.Builds()
	}
	add("tensorrt-builder", trt, "", err)
	add("store", "", a.storeDir(), writable(a.storeDir()))
	d.Parts = readyParts(d.Findings)
	return d
}

// readyParts says which parts have all that they need.
func readyParts(findings []finding) []readiness {
	var out []readiness
	for _, p := range parts {
		r := readiness{Part: p.name, Ready: true}
		for _, f := range findings {
			if slices.Contains(p.needs, f.Name) && !f.OK {
				r.Ready, r.Missing = false, append(r.Missing, f.Name)
			}
		}
		out = append(out, r)
	}
	return out
}

// docker asks the engine for its version through Docker's own client.
func docker(ctx context.Context) (string, error) {
	c, err := client.New(client.FromEnv)
	if err != nil {
		return "", failure.New(failure.Missing, "no Docker client: %w", err).WithHint("check DOCKER_HOST")
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	v, err := c.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return "", failure.New(failure.Missing, "no Docker engine: %w", err).
			WithHint("start Docker, or set DOCKER_HOST; a tritonserver in PATH or of `trtship env install triton` needs none")
	}
	return v.Version, nil
}

// writable reports whether the store's folder, or the nearest folder above it
// that exists, can be written to. Nothing is left behind.
func writable(dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return failure.New(failure.Artifact, "find store: %w", err)
	}
	for {
		if _, err := os.Stat(abs); err == nil {
			break
		}
		parent := filepath.Dir(abs)
		if parent == abs {
			break
		}
		abs = parent
	}
	f, err := os.CreateTemp(abs, ".trtship-doctor-")
	if err != nil {
		return failure.New(failure.Artifact, "write to %s: %w", abs, err).WithHint("set --store or TRTSHIP_STORE to a writable folder")
	}
	_ = f.Close()
	_ = os.Remove(f.Name())
	return nil
}

func (a *app) printDiagnosis(d diagnosis) {
	a.print("trtship %s on %s, %s, %d cores\n\n", d.Version, d.OS, d.CPU, d.Cores)
	word := func(ok bool) painted {
		if ok {
			return a.paint(text.FgGreen, "yes")
		}
		return a.paint(text.FgRed, "no")
	}
	t := a.table("tool", "usable", "version", "where, or why not")
	for _, f := range d.Findings {
		t.AppendRow([]any{f.Name, word(f.OK), f.Version, f.Detail})
		if f.Hint != "" {
			t.AppendRow([]any{"", "", "", "→ " + f.Hint})
		}
	}
	a.printTable(t)
	a.print("\n")
	t = a.table("part", "ready", "missing")
	for _, p := range d.Parts {
		t.AppendRow([]any{p.Part, word(p.Ready), strings.Join(p.Missing, ", ")})
	}
	a.printTable(t)
}

// needNames maps a stage's needs to doctor's names, so that both say the same.
var needNames = map[stage.Need]string{
	stage.NeedTorch: "torch", stage.NeedORT: "onnxruntime", stage.NeedGPU: "gpu", stage.NeedTensorRT: "tensorrt", stage.NeedTriton: "tritonserver",
}
