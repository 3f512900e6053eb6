package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/regular"
)

// cacheCheck are the flags of calibrate --check.
type cacheCheck struct {
	cache, version, method string
}

func newCalibrateCmd(a *app) *cobra.Command {
	var output string
	var check cacheCheck
	step := modelStep{stage: "calibrate", takes: artifact.OptimizedONNX, makes: artifact.CalibrationData}
	c := &cobra.Command{
		Use:     "calibrate CONFIG|MODEL.onnx [MODEL.onnx]",
		GroupID: "steps",
		Short:   "Gather activation ranges and write TensorRT's calibration cache, or judge a cache",
		Long: `calibrate runs the float graph (the optimized one, or MODEL.onnx) over the data set and writes
calibration.cache with a sidecar that says what it was made from. With --check it judges a cache
instead: header, scales, coverage of the graph, and with a configuration the sidecar against data and
settings. Every mismatch is listed, and is exit 8. The cache is never changed.

The cache is what an engine of weak typing is built with (tensorrt.typing: weak, TensorRT 10 and
older). TensorRT may pass INT8 over there wherever it finds float faster, which a small model shows:
tensorrt.precision_constraints asks for INT8 in the layers. With strong typing the same scales are in
the graph that trtship quantize writes, and hold.`,
		Args: positional(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if check.cache == "" {
				if strings.EqualFold(filepath.Ext(args[0]), ".onnx") {
					return failure.New(failure.Usage, "calibrate takes a configuration first, which names the data; %s is a model", args[0]).
						WithHint("trtship calibrate trtship.yaml %s; a model alone goes with --check", args[0])
				}
				return a.modelStep(cmd.Context(), step, args, output)
			}
			return a.checkCache(cmd.Context(), step, args, check)
		},
	}
	f := c.Flags()
	f.StringVarP(&output, "output", "o", "", "write the result to this `folder`, which must not exist")
	f.StringVar(&check.cache, "check", "", "judge this cache `file` instead of calibrating")
	f.StringVar(&check.version, "tensorrt-version", "", "with --check MODEL.onnx: the `version` that will read the cache, e.g. 10.6.0")
	f.StringVar(&check.method, "method", "", "with --check MODEL.onnx: the calibration `method` that the cache must be of")
	return c
}

// expectation is what the flags say of the cache.
func (c cacheCheck) expectation() (want calibration.Expectation, err error) {
	if c.version != "" {
		if want.Version, err = calibration.VersionNumber(c.version); err != nil {
			return want, failure.New(failure.Usage, "--tensorrt-version: %w", err)
		}
	}
	if c.method != "" {
		m, err := calibration.ParseMethod(c.method)
		if err != nil {
			return want, failure.New(failure.Usage, "--method: %w", err)
		}
		want.Token = calibration.TokenOf(m)
	}
	return want, nil
}

// checkCache judges a cache against a configuration, or against a graph alone.
func (a *app) checkCache(ctx context.Context, step modelStep, args []string, c cacheCheck) error {
	want, err := c.expectation()
	if err != nil {
		return err
	}
	info, err := os.Stat(c.cache)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("is no regular file")
	}
	if err != nil {
		return failure.New(failure.Artifact, "read calibration cache: %w", err).At(c.cache).WithHint("name the calibration.cache file in --check")
	}
	if !strings.EqualFold(filepath.Ext(args[0]), ".onnx") {
		path, err := filepath.Abs(c.cache)
		if err != nil {
			return failure.New(failure.Artifact, "find calibration cache: %w", err).At(c.cache)
		}
		a.set = append(a.set, "calibration.cache="+path)
		return a.modelStep(ctx, step, args, "")
	}
	m, err := onnx.Open(args[0])
	if err != nil {
		return err
	}
	defer m.Close() //nolint:errcheck // read only
	for _, t := range precision.Activations(m) {
		want.Graph.Tensors = append(want.Graph.Tensors, t.Name)
	}
	text, err := regular.ReadFile(c.cache)
	if err != nil {
		return failure.New(failure.Artifact, "read calibration cache: %w", err).At(c.cache)
	}
	v := calibration.Check(text, want)
	if a.json {
		if err := a.printJSON(v); err != nil {
			return err
		}
		return v.Err(c.cache)
	}
	return a.printCacheVerdict(c.cache, v)
}

func (a *app) printCacheVerdict(path string, v *calibration.Verdict) error {
	header := v.Header
	if header == "" {
		header = "no header"
	}
	a.print("%s: %s, %d scales, %d of %d tensors covered (%.1f%%)\n", path, header, v.Entries, v.Covered, v.Tensors, v.Coverage)
	for _, n := range v.Notes {
		a.print("  note: %s\n", n)
	}
	if v.OK() {
		a.print("  matches\n")
	}
	return v.Err(path)
}
