package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

func newModelsCmd(a *app) *cobra.Command {
	c := a.group("models", "List, load and unload the models of a running server", "serving")
	c.AddCommand(
		modelsCmd(a, "ls", "List the models and their versions", 0, (*app).listModels),
		modelsCmd(a, "load MODEL", "Load or reload a model (explicit model control)", 1, (*app).loadModel),
		modelsCmd(a, "unload MODEL", "Unload a model; requests are refused from then on", 1, (*app).unloadModel),
		modelsCmd(a, "stats [MODEL]", "Show requests, executions, and where their time went", -1, (*app).modelStats),
	)
	return c
}

// modelsCmd makes one of the subcommands. names is how many models it takes, -1
// for one or none.
func modelsCmd(a *app, use, short string, names int, run func(*app, context.Context, kserve.Client, string) error) *cobra.Command {
	var f serverFlags
	lo, hi := names, names
	if names < 0 {
		lo, hi = 0, 1
	}
	c := &cobra.Command{
		Use: use, Short: short, Args: positional(lo, hi),
		RunE: func(cmd *cobra.Command, args []string) error {
			model := ""
			if len(args) > 0 {
				model = args[0]
			}
			client, err := a.client(f, model)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }()
			return tritonError(run(a, cmd.Context(), client, model))
		},
	}
	f.add(c)
	return c
}

func (a *app) listModels(ctx context.Context, c kserve.Client, _ string) error {
	index, err := c.Index(ctx, false)
	if err != nil {
		return err
	}
	sort.SliceStable(index, func(i, j int) bool { return index[i].GetName() < index[j].GetName() })
	if a.json {
		rows := make([]map[string]string, len(index))
		for i, m := range index {
			rows[i] = map[string]string{"name": m.GetName(), "version": m.GetVersion(), "state": m.GetState(), "reason": m.GetReason()}
		}
		return a.printJSON(rows)
	}
	t := a.table("model", "version", "state", "reason")
	for _, m := range index {
		state := m.GetState()
		if state == "" {
			state = "not loaded"
		}
		t.AppendRow([]any{m.GetName(), m.GetVersion(), state, m.GetReason()})
	}
	a.printTable(t)
	return nil
}

func (a *app) loadModel(ctx context.Context, c kserve.Client, model string) error {
	if err := c.Load(ctx, model, nil); err != nil {
		return err
	}
	a.say("loaded %s", model)
	return nil
}

// unloadModel unloads a model that the server knows. Triton itself answers that
// it unloaded whatever it is asked to, also a name that it never heard.
func (a *app) unloadModel(ctx context.Context, c kserve.Client, model string) error {
	loaded, err := findModel(ctx, c, model)
	if err != nil {
		return err
	}
	if err := c.Unload(ctx, model); err != nil {
		return err
	}
	if loaded {
		a.say("unloaded %s", model)
	} else {
		a.say("%s was not loaded", model)
	}
	return nil
}

// findModel reports whether a version of a model is loaded, or on its way. A
// model that the server does not know is an error that names those it does.
func findModel(ctx context.Context, c kserve.Client, model string) (loaded bool, err error) {
	index, err := c.Index(ctx, false)
	if err != nil {
		return false, err
	}
	ready, err := c.Index(ctx, true) // also models whose folder is gone
	if err != nil {
		return false, err
	}
	known, names := false, map[string]bool{}
	for _, m := range slices.Concat(index, ready) {
		names[m.GetName()] = true
		if m.GetName() != model {
			continue
		}
		known = true
		if s := m.GetState(); s == "READY" || s == "LOADING" {
			loaded = true
		}
	}
	if known {
		return loaded, nil
	}
	e := failure.New(failure.Triton, "unload %s: the server knows no model of this name", model)
	if len(names) == 0 {
		return false, e.WithHint("its repository is empty")
	}
	return false, e.WithHint("it knows %s", strings.Join(slices.Sorted(maps.Keys(names)), ", "))
}

// modelStat is a model's statistics; times are means in milliseconds.
type modelStat struct {
	Model      string  `json:"model"`
	Version    string  `json:"version"`
	Requests   uint64  `json:"requests"`
	Failed     uint64  `json:"failed"`
	Rows       uint64  `json:"rows"`
	Executions uint64  `json:"executions"`
	Queue      float64 `json:"queue_ms"`
	Input      float64 `json:"compute_input_ms"`
	Infer      float64 `json:"compute_infer_ms"`
	Output     float64 `json:"compute_output_ms"`
	CacheHits  uint64  `json:"cache_hits"`
}

func statOf(m *tritonpb.ModelStatistics) modelStat {
	mean := func(d *tritonpb.StatisticDuration) float64 {
		if d.GetCount() == 0 {
			return 0
		}
		return float64(d.GetNs()) / float64(d.GetCount()) / 1e6
	}
	s := m.GetInferenceStats()
	return modelStat{
		Model: m.GetName(), Version: m.GetVersion(), Requests: s.GetSuccess().GetCount(), Failed: s.GetFail().GetCount(),
		Rows: m.GetInferenceCount(), Executions: m.GetExecutionCount(), CacheHits: s.GetCacheHit().GetCount(),
		Queue: mean(s.GetQueue()), Input: mean(s.GetComputeInput()), Infer: mean(s.GetComputeInfer()), Output: mean(s.GetComputeOutput()),
	}
}

func (a *app) modelStats(ctx context.Context, c kserve.Client, model string) error {
	all, err := c.Statistics(ctx, model, "")
	if err != nil {
		return err
	}
	stats := make([]modelStat, len(all))
	for i, m := range all {
		stats[i] = statOf(m)
	}
	if a.json {
		return a.printJSON(stats)
	}
	t := a.table("model", "version", "requests", "failed", "rows", "executions", "queue ms", "compute ms", "cache hits")
	for _, s := range stats {
		t.AppendRow([]any{s.Model, s.Version, s.Requests, s.Failed, s.Rows, s.Executions, fmt.Sprintf("%.3f", s.Queue), fmt.Sprintf("%.3f", s.Input+s.Infer+s.Output), s.CacheHits})
	}
	a.printTable(t)
	return nil
}
