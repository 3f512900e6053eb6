package passes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/tensor"
	"google.golang.org/protobuf/proto"
)

// grower makes a valid graph of whatever bytes it is given.
type grower struct {
	data   []byte
	b      *onnxtest.Builder
	rank2  []string // values [batch, 4] of float32
	made   int
	nested int
}

func (g *grower) byte() int {
	if len(g.data) == 0 {
		return 0
	}
	x := g.data[0]
	g.data = g.data[1:]
	return int(x)
}

func (g *grower) pick() string { return g.rank2[g.byte()%len(g.rank2)] }

func (g *grower) name() string {
	g.made++
	return fmt.Sprintf("v%d_%d", g.nested, g.made)
}

var (
	fuzzUnary  = []string{"Relu", "Neg", "Identity", "Sigmoid", "Abs", "Dropout", "Tanh"}
	fuzzBinary = []string{"Add", "Mul", "Sub", "Max", "Min"}
)

// step adds a node or a few, whose result is again [batch, 4].
func (g *grower) step() {
	a, out := g.pick(), g.name()
	switch kind := g.byte() % 16; kind {
	case 0, 1, 2, 3:
		g.b.Node(fuzzUnary[g.byte()%len(fuzzUnary)], a, out)
	case 4, 5, 6:
		g.b.Node(fuzzBinary[g.byte()%len(fuzzBinary)], a+" "+g.pick(), out)
	case 7:
		c := []string{"one", "zero", "two", "row"}[g.byte()%4]
		g.b.Node([]string{"Mul", "Add", "Sub", "Div"}[g.byte()%4], a+" "+c, out)
	case 8: // through another layout and back, or not quite
		t, p := g.name(), []string{"Transpose", "Identity"}[g.byte()%2]
		if p == "Transpose" {
			g.b.Node("Transpose", a, t).Node("Transpose", t, out)
		} else {
			g.b.Node("Transpose", a, t).Node("Relu", t, t+"r").Node("Transpose", t+"r", out)
		}
	case 9: // a reshape whose shape is worked out
		s, n, u, c := g.name(), g.name(), g.name(), g.name()
		g.b.Node("Shape", a, s).Node("Gather", s+" i0", n).Node("Unsqueeze", n+" l0", u).Node("Concat", u+" l4", c, onnxtest.Int("axis", 0)).Node("Reshape", a+" "+c, out)
	case 10:
		r := g.name()
		g.b.Node("Reshape", a+" flat", r).Node("Reshape", r+" back", out)
	case 11:
		p, q := g.name(), g.name()
		g.b.Node("Split", a+" halves", p+" "+q, onnxtest.Int("axis", 1)).Node("Concat", q+" "+p, out, onnxtest.Int("axis", 1))
	case 12:
		ends := []string{"max", "l4", "l2"}[g.byte()%3]
		s := g.name()
		g.b.Node("Slice", a+" l0 "+ends+" l1", s)
		if ends == "l2" {
			g.b.Node("Concat", s+" "+s, out, onnxtest.Int("axis", 1))
		} else {
			g.b.Node("Identity", s, out)
		}
	case 13: // constants that can be computed
		c, d := g.name(), g.name()
		g.b.Node(fuzzBinary[g.byte()%len(fuzzBinary)], "row two", c).Node(fuzzUnary[g.byte()%4], c, d).Node("Add", a+" "+d, out)
	case 14:
		// Something has to stand between casts there and back: ONNX Runtime 1.30 removes
		// such a pair even with optimisation off, and forgets readers in nested graphs.
		d, n := g.name(), g.name()
		g.b.Node("Cast", a, d, onnxtest.Int("to", int64([]int{1, 11}[g.byte()%2]))).Node("Neg", d, n).Node("Cast", n, out, onnxtest.Int("to", 1))
	case 15:
		g.branch(a, out)
	}
	g.rank2 = append(g.rank2, out)
}

// branch adds an If that reads values from outside.
func (g *grower) branch(a, out string) {
	if g.nested >= 2 {
		g.b.Node("Identity", a, out)
		return
	}
	bodies := make([]*onnxtest.Builder, 2)
	for i := range bodies {
		inner := &grower{data: g.data[:min(len(g.data), 12)], b: onnxtest.New(18), rank2: slices.Clone(g.rank2), nested: g.nested + 1, made: g.made + 100*(i+1)}
		g.data = g.data[min(len(g.data), 12):]
		for range 1 + inner.byte()%3 {
			inner.step()
		}
		end := inner.name()
		inner.b.Node("Identity", inner.rank2[len(inner.rank2)-1], end).Output(end, tensor.Float32, nil, nil)
		bodies[i] = inner.b
	}
	cond := []string{"flag", "yes", "no"}[g.byte()%3]
	g.b.Node("If", cond, out, onnxtest.Body("then_branch", bodies[0]), onnxtest.Body("else_branch", bodies[1]))
}

// grow returns the graph of some bytes: 3 to 27 steps, up to 3 outputs.
func grow(data []byte) *onnxtest.Builder {
	b := onnxtest.New(18).Input("x", tensor.Float32, "batch", 4).Input("flag", tensor.Bool).
		Floats("one", []int64{}, 1).Floats("zero", []int64{}, 0).Floats("two", []int64{1}, 2).Floats("row", []int64{1, 4}, 1, -2, 0.5, 3).
		Int("i0", 0).Ints("l0", 0).Ints("l1", 1).Ints("l2", 2).Ints("l4", 4).Ints("max", 1<<62).Ints("flat", -1).Ints("back", -1, 4).Ints("halves", 2, 2).
		Init("yes", tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{1}}).Init("no", tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{0}})
	g := &grower{data: data, b: b, rank2: []string{"x"}}
	for range 3 + g.byte()%25 {
		g.step()
	}
	outputs := map[string]bool{g.rank2[len(g.rank2)-1]: true}
	for range g.byte() % 3 {
		outputs[g.rank2[1:][g.byte()%(len(g.rank2)-1)]] = true
	}
	for _, name := range g.rank2 {
		if outputs[name] {
			b.Output(name, tensor.Float32, "batch", 4)
		}
	}
	return b
}

// beside returns one model that holds both graphs over the same inputs: one
// session then answers for both. Names of the second one get a prefix.
func beside(a, b *onnx.Model) *onnx.Model {
	p := proto.Clone(a.Proto).(*onnxpb.ModelProto)
	q := proto.Clone(b.Proto).(*onnxpb.ModelProto)
	inputs := map[string]bool{"": true}
	for _, in := range p.Graph.Input {
		inputs[in.GetName()] = true
	}
	prefix(q.Graph, inputs)
	p.Graph.Node = append(p.Graph.Node, q.Graph.Node...)
	p.Graph.Initializer = append(p.Graph.Initializer, q.Graph.Initializer...)
	p.Graph.Output = append(p.Graph.Output, q.Graph.Output...)
	p.Graph.ValueInfo = nil
	return onnx.New(p, a.Dir())
}

func prefix(g *onnxpb.GraphProto, keep map[string]bool) {
	change := func(names []string) {
		for i, n := range names {
			if !keep[n] {
				names[i] = "after_" + n
			}
		}
	}
	for _, n := range g.Node {
		n.Name = nil
		change(n.Input)
		change(n.Output)
		for _, sub := range onnx.Subgraphs(n) {
			prefix(sub, keep)
		}
	}
	for _, t := range g.Initializer {
		t.Name = proto.String("after_" + t.GetName())
	}
	for _, o := range g.Output {
		o.Name = proto.String("after_" + o.GetName())
	}
	g.ValueInfo = nil
}

// disagreement runs both models on two batches and says where they differ.
func disagreement(t testing.TB, before, after *onnx.Model) string {
	t.Helper()
	s, err := session(t, beside(before, after))
	if err != nil {
		return fmt.Sprintf("does not load: %v", err)
	}
	defer s.Close()
	for _, batch := range []int64{1, 3} {
		x := make([]float32, batch*4)
		for i := range x {
			x[i] = float32(i%5)*0.7 - 1
		}
		got, err := s.Infer(context.Background(), []tensor.Named{
			{Name: "x", Tensor: tensor.FromFloat32s([]int64{batch, 4}, x)}, {Name: "flag", Tensor: tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{byte(batch & 2)}}},
		})
		if err != nil {
			return fmt.Sprintf("does not run: %v", err)
		}
		half := len(got) / 2
		for i := range half {
			b := got[half+i]
			b.Name = got[i].Name
			if why := differ(got[i], b); why != "" {
				return fmt.Sprintf("batch %d, output %s: %s", batch, b.Name, why)
			}
		}
	}
	return ""
}

// FuzzPasses grows graphs and compares their answers in ONNX Runtime before and
// after all passes. Slow: each input is a session of its own.
func FuzzPasses(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 24 {
		seed := make([]byte, 40+r.IntN(100))
		for i := range seed {
			seed[i] = byte(r.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 400 {
			return
		}
		m := grow(data).Model(t)
		if why := disagreement(t, m, optimize(t, m)); why != "" {
			t.Error(why)
		}
	})
}

// FuzzPassesOnFiles runs all passes on whatever the reader accepts: they must
// not panic, and the result must hold together. Nothing is executed.
func FuzzPassesOnFiles(f *testing.F) {
	files, err := filepath.Glob(caseFile("*", "*.onnx"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := onnx.Parse(b, dir)
		if err != nil {
			return
		}
		all, err := All(Options{FoldLimit: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := Run(context.Background(), m, all, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := got.Check(); err != nil {
			t.Fatalf("the result does not hold together: %v", err)
		}
		if change := SignatureChange(m, got); change != "" {
			t.Fatal(change)
		}
		if names := got.DuplicateNodeNames(); len(names) > 0 {
			t.Fatalf("two nodes of one name, which ONNX Runtime refuses: %q", names)
		}
	})
}

// planted are wrong passes, each a mistake that a real one could make.
var planted = map[string]func(m *graph.Module) int{
	"drops a sign": func(m *graph.Module) int {
		return each(m, func(n *graph.Node) bool { return n.Standard("Neg") && n.Bypass(n.In[0]) })
	},
	"merges Sub whose operands are turned round": func(m *graph.Module) int {
		return each(m, func(n *graph.Node) bool {
			if !n.Standard("Sub") || n.In[0] == n.In[1] {
				return false
			}
			n.SetInputs(n.In[1], n.In[0])
			return true
		})
	},
	"bakes the batch": func(m *graph.Module) int {
		return each(m, func(n *graph.Node) bool {
			if !n.Standard("Reshape") || n.In[1].Name != "back" {
				return false
			}
			n.SetInput(1, n.Graph.AddInit("baked", int64Tensor([]int64{1, 4})))
			return true
		})
	},
	"takes the wrong branch": func(m *graph.Module) int {
		return each(m, func(n *graph.Node) bool {
			if !n.Standard("If") {
				return false
			}
			n.Subs[0].Attr, n.Subs[1].Attr = n.Subs[1].Attr, n.Subs[0].Attr
			return true
		})
	},
}

func each(m *graph.Module, change func(n *graph.Node) bool) int {
	count := 0
	for _, g := range m.Graphs() {
		for _, n := range g.Nodes {
			if !n.Removed && change(n) {
				count++
			}
		}
	}
	return count
}

// TestFuzzerFindsPlantedMistakes shows that FuzzPasses can fail.
func TestFuzzerFindsPlantedMistakes(t *testing.T) {
	for name, plant := range planted {
		found := false
		r := rand.New(rand.NewPCG(7, uint64(len(name))))
		for tries := 0; tries < 60 && !found; tries++ {
			data := make([]byte, 120)
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			m := grow(data).Model(t)
			mod := graph.Load(m)
			if plant(mod) == 0 {
				continue
			}
			found = disagreement(t, m, mod.Model()) != ""
		}
		if !found {
			t.Errorf("a pass that %s was not found", name)
		}
	}
}
