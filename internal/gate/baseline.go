package gate

import (
	"fmt"
	"sort"
	"strings"

	"github.com/trtship/trtship/report"
)

// cpuDevice is the Device of a measurement on a processor.
const cpuDevice = "cpu"

// Differences says by name why the speeds of two reports must not be compared;
// nothing means that they may. Another model is another thing altogether. GPUs, driver and TensorRT count where a GPU was
// measured, processor and ONNX Runtime where a processor was.
func Differences(base, head *report.Report) []string {
	var out []string
	differ := func(what, then, now string) {
		if then != now {
			out = append(out, fmt.Sprintf("%s: %s then, %s now", what, orNone(then), orNone(now)))
		}
	}
	differ("model", base.Model.Name, head.Model.Name)
	gpu, cpu := devices(base.Benchmark)
	headGPU, headCPU := devices(head.Benchmark)
	b, h := base.Environment, head.Environment
	if gpu && headGPU {
		differ("GPU", gpus(b, gpuName), gpus(h, gpuName))
		differ("driver", gpus(b, gpuDriver), gpus(h, gpuDriver))
		differ("TensorRT", b.Tools["tensorrt"], h.Tools["tensorrt"])
	}
	if cpu && headCPU {
		differ("processor", processor(b), processor(h))
		differ("ONNX Runtime", b.Tools["onnxruntime"], h.Tools["onnxruntime"])
	}
	return out
}

func devices(b *report.Benchmark) (gpu, cpu bool) {
	if b == nil {
		return false, false
	}
	for _, m := range b.Rows {
		if strings.EqualFold(m.Device, cpuDevice) {
			cpu = true
		} else {
			gpu = true
		}
	}
	return gpu, cpu
}

func gpuName(g report.GPU) string {
	if g.MIG {
		return g.Name + " (MIG)"
	}
	return g.Name
}

func gpuDriver(g report.GPU) string { return g.Driver }

// gpus lists a property of the GPUs, each value once.
func gpus(e report.Environment, get func(report.GPU) string) string {
	var out []string
	for _, g := range e.GPUs {
		out = addOnce(out, get(g))
	}
	sort.Strings(out)
	return strings.Join(out, ", ")
}

func processor(e report.Environment) string {
	if e.CPU == "" {
		return ""
	}
	return fmt.Sprintf("%s with %d cores", e.CPU, e.Cores)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// vanished fails every stage, compared output and measurement that the
// baseline has and this report has not.
func (j *judge) vanished() {
	if j.base == nil || j.base.Model.Name != j.head.Model.Name {
		return
	}
	stages := map[string]report.Verdict{}
	for _, s := range j.head.Stages {
		stages[s.Name] = s.Verdict
	}
	for _, s := range j.base.Stages {
		if _, ok := stages[s.Name]; !ok && s.Verdict == report.Pass {
			j.gone("stage "+s.Name, "the stage ran in the baseline and is not in this report")
		}
	}
	// A stage that did not run was judged above; its rows are not counted again.
	silent := func(stage string) bool {
		v, ok := stages[stage]
		return !ok || v == report.NotAsked || v == report.Missing || v == report.Broken
	}
	have := map[string]bool{}
	for i := range j.head.Validations {
		v := &j.head.Validations[i]
		for k := range v.Rows {
			have[validationKey(v, &v.Rows[k])] = true
		}
	}
	for i := range j.base.Validations {
		v := &j.base.Validations[i]
		if silent(v.Stage) {
			continue
		}
		for k := range v.Rows {
			if key := validationKey(v, &v.Rows[k]); !have[key] {
				j.gone(key, "the baseline compared this output at this point")
			}
		}
	}
	if !silent("benchmark") {
		j.vanishedMeasurements()
	}
}

func validationKey(v *report.Validation, row *report.Comparison) string {
	return v.Label() + " " + row.Output + " " + row.Point
}

func (j *judge) vanishedMeasurements() {
	if j.base.Benchmark == nil {
		return
	}
	head := map[string]bool{}
	fresh := map[string][]report.Measurement{} // rows that the baseline lacks, by row without mode
	base := map[string]bool{}
	for _, m := range j.base.Benchmark.Rows {
		base[m.Row()] = true
	}
	skipped := map[string]report.SkippedRow{}
	if j.head.Benchmark != nil {
		for _, m := range j.head.Benchmark.Rows {
			head[m.Row()] = true
			if !base[m.Row()] {
				fresh[modeless(m)] = append(fresh[modeless(m)], m)
			}
		}
		for _, s := range j.head.Benchmark.Skipped {
			skipped[s.Name] = s
		}
	}
	for _, m := range j.base.Benchmark.Rows {
		row := m.Row()
		if head[row] {
			continue
		}
		if s, ok := skipped[row]; ok {
			j.gone(row, "not measured: "+s.Reason)
			continue
		}
		if others := fresh[modeless(m)]; len(others) > 0 {
			j.otherMode(m, others[0])
			continue
		}
		j.gone(row, "the baseline measured this row")
	}
}

// modeless is the row of a measurement without its mode.
func modeless(m report.Measurement) string {
	m.Mode = ""
	return m.Row()
}

func (j *judge) otherMode(then, now report.Measurement) {
	row := then.Row()
	detail := fmt.Sprintf("mode: %s then, %s now", orNone(then.Mode), orNone(now.Mode))
	j.gate.Deltas = append(j.gate.Deltas, report.Delta{Row: row, Metric: "latency_p50_ms", Unit: "ms", Better: "lower", Base: p50(then), Change: report.Incomparable, Detail: detail})
	if j.allowedToVanish(row) {
		return
	}
	j.own(report.Check{
		ID: "gate/vanished", Subject: report.Subject{Node: row}, Verdict: report.Missing, Want: "a measurement in the baseline's mode", Got: detail,
		Hint: "modes that differ are never compared; measure in both modes, or allow this row with allow-vanished",
	})
}

func (j *judge) gone(row, why string) {
	if j.allowedToVanish(row) {
		j.note("%s is gone, which allow-vanished permits.", row)
		return
	}
	j.own(report.Check{
		ID: "gate/vanished", Subject: report.Subject{Node: row}, Verdict: report.Fail, Want: why, Got: "gone",
		Hint: "a row that is no longer measured hides a regression; bring it back, or allow it by name with allow-vanished",
	})
}

func p50(m report.Measurement) *report.Number {
	s, ok := m.Latency()
	if !ok {
		return nil
	}
	return &s.P50
}
