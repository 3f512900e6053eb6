package cli

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/server"
)

// serverFlags say which server a command talks to.
type serverFlags struct {
	http, grpc string
	timeout    time.Duration
}

func (f *serverFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.http, "http", "", "`host:port` of the server (by default the only one that serve started, else 127.0.0.1:8000)")
	c.Flags().StringVar(&f.grpc, "grpc", "", "`host:port` of the server's gRPC endpoint, in place of HTTP")
	c.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long an answer may take (`time`)")
}

// client opens the server that the flags name. model prefers the server that
// was started for it.
func (a *app) client(f serverFlags, model string) (kserve.Client, error) {
	o := kserve.Options{Protocol: kserve.HTTP, Address: f.http, Timeout: f.timeout}
	if f.http != "" && f.grpc != "" {
		return nil, failure.New(failure.Usage, "--http and --grpc: name one of the two")
	}
	if f.grpc != "" {
		o.Protocol, o.Address = kserve.GRPC, f.grpc
	}
	if o.Address == "" {
		all, err := server.Recorded(a.serversDir())
		if err != nil {
			return nil, err
		}
		for _, st := range all {
			if st.Name == model || len(all) == 1 {
				o.Address = st.HTTP
			}
		}
		if len(all) > 1 && o.Address == "" {
			return nil, failure.New(failure.Usage, "%d servers run here: name one with --http", len(all))
		}
	}
	if o.Address == "" {
		o.Address = "127.0.0.1:8000"
	}
	return kserve.Open(o)
}

func newInferCmd(a *app) *cobra.Command {
	var f serverFlags
	var inputs []string
	var version, output string
	c := &cobra.Command{
		Use:   "infer MODEL --input NAME=FILE.npy",
		Short: "Send one request to a served model and show or keep its outputs",
		Long: `infer sends the arrays of .npy files, or all arrays of an .npz file, as one request. Outputs are
printed in short, or written whole to an .npz file with -o.`,
		Example: "  trtship infer digits --input image=image.npy\n  trtship infer digits --input test.npz -o out.npz",
		GroupID: "serving",
		Args:    positional(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.infer(cmd.Context(), f, args[0], version, inputs, output)
		},
	}
	f.add(c)
	c.Flags().StringArrayVarP(&inputs, "input", "i", nil, "`NAME=FILE.npy`, or FILE.npz with an array an input; may be repeated")
	c.Flags().StringVar(&version, "version", "", "`number` of the model's version; the server's choice by default")
	c.Flags().StringVarP(&output, "output", "o", "", "write the outputs to this `file` (.npz), which must not exist")
	return c
}

func (a *app) infer(ctx context.Context, f serverFlags, model, version string, inputs []string, output string) error {
	if err := refuseExisting(output); err != nil {
		return err
	}
	if len(inputs) == 0 {
		return failure.New(failure.Usage, "infer needs --input NAME=FILE.npy for every input of the model")
	}
	feed, err := readInputs(inputs)
	if err != nil {
		return err
	}
	c, err := a.client(f, model)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	loaded, err := c.ModelConfig(ctx, model, version)
	if err != nil {
		return tritonError(err)
	}
	served := triton.Served{Config: loaded}
	began := time.Now()
	out, err := c.Infer(ctx, kserve.Request{Model: model, Version: version, Inputs: served.ToWire(feed)})
	if err != nil {
		return tritonError(err)
	}
	took := time.Since(began)
	out.Outputs = served.FromWire(out.Outputs)
	if output != "" {
		if err := tensor.WriteNPZ(output, out.Outputs); err != nil {
			return failure.New(failure.Artifact, "write outputs: %w", err)
		}
	}
	return a.printOutputs(out, took, output)
}

// readInputs reads the arrays that --input names.
func readInputs(inputs []string) ([]tensor.Named, error) {
	var feed []tensor.Named
	for _, in := range inputs {
		name, file, ok := strings.Cut(in, "=")
		if !ok || filepath.Ext(in) == ".npz" && !strings.Contains(in, "=") {
			all, err := tensor.ReadNPZ(in)
			if err != nil {
				return nil, failure.New(failure.Artifact, "read %s: %w", in, err).WithHint("--input is NAME=FILE.npy or FILE.npz")
			}
			feed = append(feed, all...)
			continue
		}
		t, err := tensor.ReadNPYFile(file)
		if err != nil {
			return nil, failure.New(failure.Artifact, "read input %s: %w", name, err)
		}
		feed = append(feed, tensor.Named{Name: name, Tensor: t})
	}
	return feed, nil
}

// tritonError makes a refusal of the server exit 10.
func tritonError(err error) error {
	if failure.CodeOf(err) != failure.Bug {
		return err
	}
	return failure.New(failure.Triton, "%w", err)
}

// outputSummary is an output as infer prints it.
type outputSummary struct {
	Name   string   `json:"name"`
	DType  string   `json:"dtype"`
	Shape  []int64  `json:"shape"`
	Values []string `json:"first_values"`
}

// shownValues is how many elements of an output are printed.
const shownValues = 10

func (a *app) printOutputs(out kserve.Response, took time.Duration, file string) error {
	var rows []outputSummary
	for _, o := range out.Outputs {
		rows = append(rows, outputSummary{o.Name, string(o.DType), o.Shape, firstValues(o.Tensor, shownValues)})
	}
	if a.json {
		return a.printJSON(map[string]any{"model": out.Model, "version": out.Version, "milliseconds": float64(took) / float64(time.Millisecond), "outputs": rows, "file": file})
	}
	a.print("%s version %s answered in %s\n", out.Model, out.Version, took.Round(10*time.Microsecond))
	for _, r := range rows {
		more := ""
		if tensor.Elements(r.Shape) > shownValues {
			more = " ..."
		}
		a.print("  %s %s%v: %s%s\n", r.Name, r.DType, r.Shape, strings.Join(r.Values, " "), more)
	}
	if file != "" {
		a.say("wrote %s", file)
	}
	return nil
}

// firstValues writes the first elements of a tensor.
func firstValues(t tensor.Tensor, n int) []string {
	if t.DType == tensor.String {
		out := make([]string, 0, n)
		for _, s := range t.Strings[:min(n, len(t.Strings))] {
			out = append(out, fmt.Sprintf("%q", s))
		}
		return out
	}
	size := t.DType.Size()
	out := []string{}
	for i := 0; i < n && (i+1)*size <= len(t.Data) && size > 0; i++ {
		out = append(out, elementText(t.DType, t.Data[i*size:(i+1)*size]))
	}
	return out
}

func elementText(d tensor.DType, b []byte) string {
	le := binary.LittleEndian
	switch d {
	case tensor.Float32:
		return fmt.Sprintf("%g", math.Float32frombits(le.Uint32(b)))
	case tensor.Float64:
		return fmt.Sprintf("%g", math.Float64frombits(le.Uint64(b)))
	case tensor.Bool:
		return fmt.Sprint(b[0] != 0)
	case tensor.Int64:
		return fmt.Sprint(int64(le.Uint64(b)))
	case tensor.UInt64:
		return fmt.Sprint(le.Uint64(b))
	case tensor.Int32:
		return fmt.Sprint(int32(le.Uint32(b)))
	case tensor.UInt32:
		return fmt.Sprint(le.Uint32(b))
	case tensor.Int16:
		return fmt.Sprint(int16(le.Uint16(b)))
	case tensor.UInt16:
		return fmt.Sprint(le.Uint16(b))
	case tensor.Int8:
		return fmt.Sprint(int8(b[0]))
	case tensor.UInt8:
		return fmt.Sprint(b[0])
	case tensor.BFloat16:
		return fmt.Sprintf("%g", math.Float32frombits(uint32(le.Uint16(b))<<16))
	case tensor.Float16:
		return fmt.Sprintf("%g", tensor.HalfValue(le.Uint16(b)))
	}
	return fmt.Sprintf("0x%x", b)
}
