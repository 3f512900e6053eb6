package cli

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
)

// modelStep describes a command that runs one stage, perhaps on a model that is
// given by hand, and perhaps writes what the stage made.
type modelStep struct {
	use, short, long string
	group            string
	stage            string
	takes            artifact.Kind // of MODEL; empty if the command takes none
	makes            artifact.Kind // what -o gets; empty if there is no -o
	file             string        // file of it that -o names; empty makes -o a folder
}

// modelSteps are the commands of this form.
var modelSteps = []modelStep{
	{
		use: "export CONFIG", short: "Export the model to ONNX, checked against the declared signature", group: "steps",
		long:  "export writes the ONNX model, and its weights beside it where they are large. Inputs and outputs are\nheld to the configuration, names, types and dynamic dimensions.",
		stage: "export", makes: artifact.ONNX, file: "model.onnx",
	},
	{
		use: "optimize CONFIG [MODEL.onnx]", short: "Clean up the graph; every pass is proven or dropped", group: "steps",
		long:  "optimize runs the passes on the exported graph, or on MODEL.onnx. A pass that changes outputs, names,\norder or symbolic dimensions at any point is dropped, and named.",
		stage: "optimize", takes: artifact.ONNX, makes: artifact.OptimizedONNX, file: "model.onnx",
	},
	{
		use: "quantize CONFIG [MODEL.onnx]", short: "Write one graph for each precision: fp16, bf16, int8", group: "steps",
		long:  "quantize writes the precisions of tensorrt.precisions into copies of the optimized graph, or of MODEL.onnx,\nand compares each with the reference in ONNX Runtime: a preview, for a CPU computes fp16 in fp32.",
		stage: "quantize", takes: artifact.OptimizedONNX, makes: artifact.PrecisionONNX,
	},
	{
		use: "build CONFIG [MODEL.onnx]", short: "Build TensorRT engines, one for each precision (GPU)", group: "steps",
		long:  "build makes a plan for each of tensorrt.precisions from the optimized graph, or from MODEL.onnx, and\nits description beside it.",
		stage: "build", takes: artifact.OptimizedONNX, makes: artifact.Engine,
	},
}

// newModelStepCmd makes the command of a modelStep.
func newModelStepCmd(m modelStep) func(*app) *cobra.Command {
	return func(a *app) *cobra.Command {
		most := 1
		if m.takes != "" {
			most = 2
		}
		var output string
		c := &cobra.Command{
			Use: m.use, Short: m.short, Long: m.long, GroupID: m.group, Args: positional(1, most),
			RunE: func(cmd *cobra.Command, args []string) error { return a.modelStep(cmd.Context(), m, args, output) },
		}
		if m.makes != "" {
			what := "write the result to this `folder`, which must not exist"
			if m.file != "" {
				what = "write the result to this `file`, which must not exist; weights go beside it"
			}
			c.Flags().StringVarP(&output, "output", "o", "", what)
		}
		return c
	}
}

func (a *app) modelStep(ctx context.Context, m modelStep, args []string, output string) error {
	if err := refuseExisting(output); err != nil {
		return err
	}
	s, err := a.step(ctx, args[0])
	if err != nil {
		return err
	}
	defer s.session.Close()
	if len(args) == 2 {
		if err := s.giveONNX(ctx, m.takes, "", args[1]); err != nil {
			return err
		}
	}
	_, arts, err := s.run(ctx, m.stage)
	if err != nil || output == "" {
		return err
	}
	switch m.makes {
	case artifact.Engine:
		return s.copyEngines(ctx, arts, output)
	case artifact.PrecisionONNX:
		for _, art := range arts {
			if art.Kind == m.makes {
				if err := s.copyOut(ctx, []artifact.Artifact{art}, m.makes, filepath.Join(output, art.Label), ""); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return s.copyOut(ctx, arts, m.makes, output, m.file)
}

// copyEngines writes every engine as <model>.<precision>.plan and its
// description as <model>.<precision>.json.
func (s *step) copyEngines(ctx context.Context, arts []artifact.Artifact, dir string) error {
	for _, art := range arts {
		if art.Kind != artifact.Engine {
			continue
		}
		base := filepath.Join(dir, s.session.cfg.Model.Name+"."+art.Label)
		for from, to := range map[string]string{"model.plan": base + ".plan", "engine.json": base + ".json"} {
			if err := copyFile(ctx, filepath.Join(art.Dir, from), to); err != nil {
				return err
			}
		}
		s.session.a.say("wrote %s.plan", base)
	}
	return nil
}
