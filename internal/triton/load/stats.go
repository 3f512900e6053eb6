package load

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/report"
)

// counters are a model's statistics since the server started.
type counters struct {
	requests, executions, rows, hits   uint64
	total, queue, input, infer, output uint64
	known                              bool
}

func readCounters(ctx context.Context, c kserve.Client, model, version string) counters {
	all, err := c.Statistics(ctx, model, version)
	if err != nil {
		return counters{} // a server without the extension: the split is left out
	}
	k := counters{known: true}
	for _, m := range all {
		s := m.GetInferenceStats()
		k.requests += s.GetSuccess().GetCount()
		k.total += s.GetSuccess().GetNs()
		k.queue += s.GetQueue().GetNs()
		k.input += s.GetComputeInput().GetNs()
		k.infer += s.GetComputeInfer().GetNs()
		k.output += s.GetComputeOutput().GetNs()
		k.hits += s.GetCacheHit().GetCount()
		k.executions += m.GetExecutionCount()
		k.rows += m.GetInferenceCount()
	}
	return k
}

func (k counters) since(from counters) (Split, bool) {
	n := k.requests - from.requests
	if !k.known || !from.known || n == 0 || k.requests < from.requests {
		return Split{}, false
	}
	mean := func(a, b uint64) report.Number { return report.Number(float64(a-b) / float64(n) / 1e6) }
	return Split{
		Requests: n, Executions: k.executions - from.executions, Rows: k.rows - from.rows, CacheHits: k.hits - from.hits,
		Queue: mean(k.queue, from.queue), ComputeInput: mean(k.input, from.input), ComputeInfer: mean(k.infer, from.infer),
		ComputeOutput: mean(k.output, from.output), Total: mean(k.total, from.total),
	}, true
}

// readMetrics reads the server's metrics page: lines of the model, and those of
// no model (GPU, CPU, memory).
func readMetrics(ctx context.Context, address, model string) map[string]float64 {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil
	}
	defer func() { _ = reply.Body.Close() }()
	out := map[string]float64{}
	lines := bufio.NewScanner(reply.Body)
	for lines.Scan() {
		name, value, ok := metric(lines.Text(), model)
		if ok {
			out[name] += value
		}
	}
	return out
}

// metric reads one line of the page. Labels of the model and its version are
// dropped, so that versions add up.
func metric(line, model string) (string, float64, bool) {
	if line == "" || line[0] == '#' {
		return "", 0, false
	}
	at := strings.LastIndexByte(line, ' ')
	if at < 0 {
		return "", 0, false
	}
	value, err := strconv.ParseFloat(line[at+1:], 64)
	if err != nil {
		return "", 0, false
	}
	name, labels, _ := strings.Cut(line[:at], "{")
	labels = strings.TrimSuffix(labels, "}")
	if strings.Contains(labels, "model=") {
		if !strings.Contains(labels, "model="+strconv.Quote(model)) {
			return "", 0, false
		}
		return name, value, true
	}
	if labels != "" {
		name += "{" + labels + "}"
	}
	return name, value, true
}

// gauges are metrics whose value counts, not its change.
func gauge(name string) bool {
	for _, g := range []string{"utilization", "memory", "power", "pending", "_used_", "_total_bytes"} {
		if strings.Contains(name, g) {
			return true
		}
	}
	return false
}

func changes(from, to map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for name, v := range to {
		if gauge(name) {
			out[name] = v
		} else if d := v - from[name]; d != 0 {
			out[name] = d
		}
	}
	return out
}
