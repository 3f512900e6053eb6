package tensor

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/testkit"
)

// The cases of r04, with what a careful comparison says about each.
func TestCompareJudgesEveryPairOfTheNaNCases(t *testing.T) {
	testkit.HoldsCase(t, "r04-nan-inf-compare")
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "cases", "r04-nan-inf-compare", "compare.json"))
	if err != nil {
		t.Fatal(err)
	}
	// The file has bare NaN and Infinity, as Python writes them.
	valid := regexp.MustCompile(`(?m)^(\s*)(NaN|-?Infinity)(,?)$`).ReplaceAllString(string(text), `$1"$2"$3`)
	var cases []struct {
		Case, Verdict        string
		Reference, Candidate any
	}
	if err := json.Unmarshal([]byte(valid), &cases); err != nil {
		t.Fatal(err)
	}
	type want struct {
		elements, breaches, nonFinite int64
		nan, inf                      [2]int64
		maxAbs                        float64
		cosine                        float64 // -2: not defined
		shape                         bool
	}
	wants := map[string]want{
		"both NaN, same place":           {elements: 1, nan: [2]int64{1, 1}, cosine: 1},
		"NaN against a number":           {elements: 2, breaches: 1, nonFinite: 1, nan: [2]int64{0, 1}, maxAbs: math.Inf(1), cosine: 1},
		"number against NaN":             {elements: 2, breaches: 1, nonFinite: 1, nan: [2]int64{1, 0}, maxAbs: math.Inf(1), cosine: 1},
		"same infinity":                  {elements: 2, inf: [2]int64{1, 1}, cosine: 1},
		"opposite infinity":              {elements: 2, breaches: 1, nonFinite: 1, inf: [2]int64{1, 1}, maxAbs: math.Inf(1), cosine: 1},
		"infinity against finite":        {elements: 2, breaches: 1, nonFinite: 1, inf: [2]int64{1, 0}, maxAbs: math.Inf(1), cosine: 1},
		"all NaN on both sides":          {elements: 0, nan: [2]int64{2, 2}, cosine: -2},
		"zero vectors":                   {elements: 2, cosine: -2},
		"zero against non-zero":          {elements: 2, breaches: 1, maxAbs: float64(float32(0.001)), cosine: 0},
		"tiny norms":                     {elements: 2, cosine: 1},
		"fp32 huge norms":                {elements: 2, cosine: 1},
		"no elements":                    {elements: 0, cosine: -2},
		"shape differs, would broadcast": {shape: true},
	}
	if len(cases) != len(wants) {
		t.Errorf("the file has %d cases, the test knows %d", len(cases), len(wants))
	}
	for _, c := range cases {
		t.Run(c.Case, func(t *testing.T) {
			w, ok := wants[c.Case]
			if !ok {
				t.Fatal("the test does not know this case")
			}
			got, err := Compare(Pair(fromJSON(t, c.Reference), fromJSON(t, c.Candidate)), Rule{Atol: 1e-6, Rtol: 1e-5, AllowNaN: true})
			if w.shape {
				if _, ok := errors.AsType[*ShapeError](err); !ok {
					t.Fatalf("err = %v, want a ShapeError", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			cosine := -2.0
			if got.Cosines > 0 {
				cosine = got.CosineMin
			}
			have := want{got.Elements, got.Breaches, got.NonFinite, got.NaN, got.Inf, got.MaxAbs, cosine, false}
			if diff := cmp.Diff(w, have, cmp.AllowUnexported(want{}), cmp.Comparer(func(a, b float64) bool { return a == b || math.Abs(a-b) < 1e-15 })); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			for name, v := range got.Metrics() {
				if math.IsNaN(v) {
					t.Errorf("metric %s is NaN", name)
				}
			}
		})
	}
}

func fromJSON(t *testing.T, v any) Tensor {
	t.Helper()
	var values []float64
	var shape []int64
	var walk func(v any, depth int)
	walk = func(v any, depth int) {
		switch v := v.(type) {
		case []any:
			if depth == len(shape) {
				shape = append(shape, int64(len(v)))
			}
			for _, x := range v {
				walk(x, depth+1)
			}
		case float64:
			values = append(values, v)
		case string:
			values = append(values, map[string]float64{"NaN": math.NaN(), "Infinity": math.Inf(1), "-Infinity": math.Inf(-1)}[v])
		default:
			t.Fatalf("unexpected %T", v)
		}
	}
	walk(v, 0)
	return FromFloat64s(Float32, shape, values)
}

func TestNaNEqualsNaNOnlyWhereAllowed(t *testing.T) {
	a := FromFloat64s(Float32, []int64{2}, []float64{math.NaN(), 1})
	c, err := Compare(Pair(a, a), Rule{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Breaches != 1 || c.NonFinite != 1 || c.Elements != 2 {
		t.Errorf("two NaNs that are not allowed: %d breaches, %d not finite, %d elements; want 1, 1, 2", c.Breaches, c.NonFinite, c.Elements)
	}
}

// slow is an independent comparison: exact sums, sorted differences, nothing
// shared with the kernels.
type slow struct {
	finite, breaches, nonFinite   int64
	maxAbs, meanAbs, rmse, maxRel float64
	spread                        float64 // the largest finite difference
	quantiles                     map[int]float64
	cosine                        float64
	cosines                       int64
	top1                          float64
	kl                            float64
	first                         int64
}

func slowCompare(ref, got Tensor, rule Rule) slow {
	s := slow{quantiles: map[int]float64{}, cosine: math.Inf(1), first: -1}
	r, g := ref.Float64s(), got.Float64s()
	var diffs []float64
	sum, squares := newAccumulator(len(r)), newAccumulator(len(r))
	for i := range r {
		equal := r[i] == g[i] || (r[i] != r[i] && g[i] != g[i] && rule.AllowNaN)
		d := math.Abs(g[i] - r[i])
		if math.IsNaN(d) || math.IsInf(d, 0) {
			if !equal {
				s.nonFinite++
				s.breaches++
				if s.first < 0 {
					s.first = int64(i)
				}
			}
			continue
		}
		s.finite++
		if d > rule.Atol+rule.Rtol*math.Abs(r[i]) {
			s.breaches++
			if s.first < 0 {
				s.first = int64(i)
			}
		}
		diffs = append(diffs, d)
		sum.add(d, 1)
		squares.add(d, d)
		s.maxAbs = max(s.maxAbs, d)
		if r[i] != 0 {
			s.maxRel = max(s.maxRel, d/math.Abs(r[i]))
		}
	}
	if s.finite > 0 {
		n := new(big.Float).SetInt64(s.finite)
		s.meanAbs, _ = new(big.Float).Quo(sum.value(), n).Float64()
		s.rmse, _ = new(big.Float).Sqrt(new(big.Float).Quo(squares.value(), n)).Float64()
		slices.Sort(diffs)
		for _, q := range quantiles {
			lo, frac := position(q, s.finite)
			hi := min(lo+1, s.finite-1)
			s.quantiles[q] = diffs[lo] + frac*(diffs[hi]-diffs[lo])
		}
	}
	s.spread = s.maxAbs
	if s.nonFinite > 0 {
		s.maxAbs = math.Inf(1)
	}
	l := newLayout(ref.Shape)
	for at := int64(0); at < l.n; at += l.slice {
		if c, ok := exactCosine(r[at:at+l.slice], g[at:at+l.slice]); ok {
			s.cosine, s.cosines = min(s.cosine, c), s.cosines+1
		}
	}
	s.rows(r, g, l)
	return s
}

// accumulator sums exactly for small tensors; those that are only there to have
// several blocks get a compensated sum, which is far better than 1e-12 too.
type accumulator struct {
	exact     *big.Float
	sum, lost float64
}

func newAccumulator(n int) *accumulator {
	if n > 10000 {
		return &accumulator{}
	}
	return &accumulator{exact: new(big.Float).SetPrec(4400)}
}

func (a *accumulator) add(x, y float64) {
	if a.exact != nil {
		p := new(big.Float).SetPrec(4400).SetFloat64(x)
		a.exact.Add(a.exact, p.Mul(p, new(big.Float).SetFloat64(y)))
		return
	}
	y = x*y - a.lost
	t := a.sum + y
	a.lost, a.sum = (t-a.sum)-y, t
}

func (a *accumulator) value() *big.Float {
	if a.exact != nil {
		return a.exact
	}
	return new(big.Float).SetPrec(200).SetFloat64(a.sum)
}

func exactCosine(r, g []float64) (float64, bool) {
	dots, rrs, ggs := newAccumulator(len(r)), newAccumulator(len(r)), newAccumulator(len(r))
	for i := range r {
		if math.Abs(r[i]) > math.MaxFloat64 || math.Abs(g[i]) > math.MaxFloat64 || r[i] != r[i] || g[i] != g[i] || math.IsInf(g[i]-r[i], 0) {
			continue
		}
		dots.add(r[i], g[i])
		rrs.add(r[i], r[i])
		ggs.add(g[i], g[i])
	}
	f := func() *big.Float { return new(big.Float).SetPrec(200) }
	dot, rr, gg := f().Set(dots.value()), f().Set(rrs.value()), f().Set(ggs.value())
	if rr.Sign() == 0 && gg.Sign() == 0 {
		return 0, false
	}
	if rr.Sign() == 0 || gg.Sign() == 0 {
		return 0, true
	}
	v, _ := f().Quo(dot, f().Mul(f().Sqrt(rr), f().Sqrt(gg))).Float64()
	return v, true
}

func (s *slow) rows(r, g []float64, l layout) {
	if l.row == 0 {
		return
	}
	agree, n, klSum, klRows := 0, 0, 0.0, 0
	for at := int64(0); at < l.n; at += l.row {
		a, b := r[at:at+l.row], g[at:at+l.row]
		top := func(v []float64) int {
			best := 0
			for i, x := range v {
				if x != x {
					return i
				}
				if x > v[best] {
					best = i
				}
			}
			return best
		}
		n++
		if i, k := top(a), top(b); i == k || a[k] == a[i] {
			agree++
		}
		finite := true
		for i := range a {
			if math.Abs(a[i]) > math.MaxFloat64 || math.Abs(b[i]) > math.MaxFloat64 || a[i] != a[i] || b[i] != b[i] {
				finite = false
			}
		}
		if finite {
			klSum += naiveKL(a, b)
			klRows++
		}
	}
	s.top1 = float64(agree) / float64(n)
	if klRows > 0 {
		s.kl = klSum / float64(klRows)
	}
}

func naiveKL(a, b []float64) float64 {
	// Against the maximum, for beside a large one the logarithm of the sum is lost.
	lse := func(v []float64) (top, log float64) {
		m, sum := slices.Max(v), 0.0
		for _, x := range v {
			sum += math.Exp(x - m)
		}
		return m, math.Log(sum)
	}
	ma, la := lse(a)
	mb, lb := lse(b)
	kl := 0.0
	for i := range a {
		kl += math.Exp(a[i]-ma-la) * ((a[i] - ma - la) - (b[i] - mb - lb))
	}
	return kl
}

// bounds are how far the kernels may be from the exact values, by the usual
// analysis of rounding: u is 2^-53, n additions in any order lose up to n*u of
// the sum of magnitudes, and every other operation another u. Nothing underflows
// where squares stay in range.
type bounds struct {
	sum    float64 // relative: a sum of n terms that are not negative, its mean and root
	ratio  float64 // relative: the kernel compares d with maxRel*|r|, and divides only if it is larger
	cosine float64 // absolute: dot loses n*u of |r||g| at most (Cauchy-Schwarz), which is what it is divided by
	kl     float64 // absolute
}

// boundsOf takes the number of elements and the largest finite difference.
//
// With D the largest difference and p = softmax(ref), KL is the mean of ref-got
// under p, and the difference of two logarithms of sums, which are D apart at
// most. Exponentials are good to 1e-12 (expNegative, whose argument carries an
// error of 700u), weights therefore to twice that and 2n*u, and each weighs a
// difference of D at most: the kernel loses (2.2e-12 + (2n+8)u) D. The slow way
// subtracts logarithms that are 2D apart: another (2n+8)u D and 2*745u D.
// What does not grow with D is below 1e-9: n*u of the logarithm of n.
func boundsOf(n int64, spread float64) bounds {
	const u = 1.0 / (1 << 53)
	terms := float64(n)
	return bounds{
		// The blocks' partial sums lose less than n*u where n is large.
		sum:    min((terms+4)*u, 1e-12),
		ratio:  4 * u,
		cosine: 2 * (terms + 4) * u,
		kl:     1e-9 + spread*(2.5e-12+(4*terms+16)*u),
	}
}

func near(a, b, rel float64) bool {
	return a == b || math.Abs(a-b) <= rel*max(math.Abs(a), math.Abs(b)) || math.Abs(a-b) < 1e-300
}

func checkAgainstSlow(t *testing.T, ref, got Tensor, rule Rule) {
	t.Helper()
	want := slowCompare(ref, got, rule)
	c, err := Compare(Pair(ref, got), rule)
	if err != nil {
		t.Fatal(err)
	}
	ints := []struct {
		name      string
		want, got int64
	}{
		{"finite", want.finite, c.Finite},
		{"breaches", want.breaches, c.Breaches},
		{"not finite", want.nonFinite, c.NonFinite},
		{"cosines", want.cosines, c.Cosines},
	}
	for _, x := range ints {
		if x.want != x.got {
			t.Errorf("%s = %d, want %d", x.name, x.got, x.want)
		}
	}
	if want.first >= 0 {
		if diff := cmp.Diff(unravel(0, want.first, ref.Shape), c.First); diff != "" {
			t.Errorf("first breach: -want +got\n%s", diff)
		}
	} else if c.First != nil {
		t.Errorf("first breach = %v, want none", c.First)
	}
	may := boundsOf(Elements(ref.Shape), want.spread)
	floats := []struct {
		name      string
		want, got float64
		rel       float64
	}{
		{"max abs", want.maxAbs, c.MaxAbs, 0},
		{"mean abs", want.meanAbs, c.MeanAbs, may.sum},
		{"rmse", want.rmse, c.RMSE, may.sum},
		{"max rel", want.maxRel, c.MaxRel, may.ratio},
		{"top1", want.top1, c.Top1, 0},
	}
	for _, x := range floats {
		if !near(x.want, x.got, x.rel) {
			t.Errorf("%s = %v, want %v", x.name, x.got, x.want)
		}
	}
	for _, q := range quantiles {
		if want.finite > 0 && want.quantiles[q] != c.Quantiles[q] {
			t.Errorf("quantile %d = %v, want exactly %v", q, c.Quantiles[q], want.quantiles[q])
		}
	}
	// Written so that NaN fails.
	if want.cosines > 0 && !(math.Abs(want.cosine-c.CosineMin) <= may.cosine) {
		t.Errorf("cosine = %v, want %v", c.CosineMin, want.cosine)
	}
	if !(math.Abs(want.kl-c.KL) <= may.kl) {
		t.Errorf("kl = %v, want %v within %v", c.KL, want.kl, may.kl)
	}
	total := int64(0)
	for _, n := range c.Counts {
		total += n
	}
	if total != c.Finite {
		t.Errorf("the histogram holds %d differences, want %d", total, c.Finite)
	}
}

func TestCompareAgreesWithASlowExactOne(t *testing.T) {
	shapes := [][]int64{
		{}, {1}, {7}, {2, 3}, {5, 1}, {1, 5000}, {3, 2048}, {2, 2049}, {4, 3, 10}, {1, 1 << 20}, {3, 700001}, {2100000}, {1500000, 2}, {2, 1, 1},
	}
	makers := map[string]func(r *rand.Rand) (float64, float64){
		"close":    func(r *rand.Rand) (float64, float64) { x := r.NormFloat64(); return x, x + 1e-4*r.NormFloat64() },
		"equal":    func(r *rand.Rand) (float64, float64) { x := r.NormFloat64(); return x, x },
		"unlike":   func(r *rand.Rand) (float64, float64) { return r.NormFloat64(), r.NormFloat64() },
		"few":      func(r *rand.Rand) (float64, float64) { return float64(r.IntN(3)), float64(r.IntN(3)) },
		"zeros":    func(r *rand.Rand) (float64, float64) { return 0, 0 },
		"oddities": oddity,
		"wide":     func(r *rand.Rand) (float64, float64) { return wide(r), wide(r) },
	}
	types := []DType{Float32, Float16, BFloat16, Float64, Float8E4, Float8E5}
	for name, maker := range makers {
		for i, shape := range shapes {
			d := types[(i+len(name))%len(types)]
			n := int(Elements(shape))
			if n > 100000 && (name != "close" && name != "few" || name == "few" && i%2 == 0) {
				continue
			}
			t.Run(fmt.Sprintf("%s %s %v", name, d, shape), func(t *testing.T) {
				r := rand.New(rand.NewPCG(uint64(n), uint64(i)))
				a, b := make([]float64, n), make([]float64, n)
				for k := range a {
					a[k], b[k] = maker(r)
				}
				checkAgainstSlow(t, FromFloat64s(d, shape, a), FromFloat64s(d, shape, b), Rule{Atol: 1e-4, Rtol: 1e-3, AllowNaN: i%2 == 0})
			})
		}
	}
}

func oddity(r *rand.Rand) (float64, float64) {
	pick := func() float64 {
		switch r.IntN(8) {
		case 0:
			return math.NaN()
		case 1:
			return math.Inf(1)
		case 2:
			return math.Inf(-1)
		case 3:
			return 0
		}
		return r.NormFloat64()
	}
	return pick(), pick()
}

func wide(r *rand.Rand) float64 { return math.Ldexp(r.NormFloat64(), r.IntN(260)-130) }

func TestCosineOfFloat64DoesNotUnderflowOrOverflow(t *testing.T) {
	cases := map[string]struct {
		ref, got []float64
		want     float64
		defined  bool
	}{
		"both tiny":         {[]float64{1e-200, 2e-200}, []float64{1e-200, 2e-200}, 1, true},
		"both huge":         {[]float64{1e200, 1e200}, []float64{1e200, -1e200}, 0, true},
		"tiny against huge": {[]float64{1e-300, 0}, []float64{1e300, 0}, 1, true},
		"denormal":          {[]float64{5e-324, 0}, []float64{5e-324, 5e-324}, math.Sqrt(0.5), true},
		"zero against tiny": {[]float64{0, 0}, []float64{1e-300, 0}, 0, true},
		"zeros":             {[]float64{0, 0}, []float64{0, 0}, 0, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Compare(Pair(FromFloat64s(Float64, []int64{2}, c.ref), FromFloat64s(Float64, []int64{2}, c.got)), Rule{})
			if err != nil {
				t.Fatal(err)
			}
			if (got.Cosines > 0) != c.defined {
				t.Fatalf("%d cosines, want defined = %v", got.Cosines, c.defined)
			}
			if c.defined && !near(got.CosineMin, c.want, 1e-12) {
				t.Errorf("cosine = %v, want %v", got.CosineMin, c.want)
			}
		})
	}
}

// A pair whose difference leaves float64 is no part of the cosine, be the others
// in range or not.
func TestCosineLeavesOutDifferencesBeyondFloat64(t *testing.T) {
	for _, scale := range []float64{1, 1e200} {
		ref, got := []float64{1.5e308, scale, 2 * scale}, []float64{-1.5e308, scale, 2 * scale}
		c, err := Compare(Pair(FromFloat64s(Float64, []int64{3}, ref), FromFloat64s(Float64, []int64{3}, got)), Rule{})
		if err != nil {
			t.Fatal(err)
		}
		if c.NonFinite != 1 || c.Finite != 2 || c.Cosines != 1 || math.Abs(c.CosineMin-1) > 1e-15 {
			t.Errorf("beside %v: %d not finite, %d finite, cosine %v; want 1, 2, 1", scale, c.NonFinite, c.Finite, c.CosineMin)
		}
	}
}

func TestSeveralSamplesArePooled(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var refs, gots []Tensor
	var a, b []float64
	for range 5 {
		x, y := make([]float64, 30), make([]float64, 30)
		for i := range x {
			x[i], y[i] = r.NormFloat64(), r.NormFloat64()
		}
		refs, gots = append(refs, FromFloat64s(Float32, []int64{3, 10}, x)), append(gots, FromFloat64s(Float32, []int64{3, 10}, y))
		a, b = append(a, x...), append(b, y...)
	}
	pooled, err := Compare(Pairs{Len: 5, At: func(i int) (Tensor, Tensor, error) { return refs[i], gots[i], nil }}, Rule{Atol: 2})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := Compare(Pair(FromFloat64s(Float32, []int64{15, 10}, a), FromFloat64s(Float32, []int64{15, 10}, b)), Rule{Atol: 2})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole.Quantiles, pooled.Quantiles); diff != "" {
		t.Errorf("quantiles of pooled samples: -want +got\n%s", diff)
	}
	if pooled.Elements != whole.Elements || pooled.Breaches != whole.Breaches || pooled.CosineMin != whole.CosineMin || pooled.Top1 != whole.Top1 {
		t.Errorf("pooled %+v\nwhole %+v", pooled, whole)
	}
	first := []int64{whole.First[1] / 3, whole.First[1] % 3, whole.First[2]}
	if diff := cmp.Diff(first, pooled.First); diff != "" {
		t.Errorf("first breach has the sample in front: -want +got\n%s", diff)
	}
}

func TestTheResultDoesNotDependOnTheNumberOfWorkers(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	n := 3 << 20
	a, b := make([]float64, n), make([]float64, n)
	for i := range a {
		a[i] = r.NormFloat64()
		b[i] = a[i] + 1e-3*r.NormFloat64()
	}
	ref, got := FromFloat64s(Float32, []int64{3, 1 << 20}, a), FromFloat64s(Float32, []int64{3, 1 << 20}, b)
	var results []Comparison
	for _, workers := range []int{1, 2, 7} {
		c := &comparer{pairs: Pair(ref, got), rule: Rule{Atol: 1e-3}, workers: workers}
		c.CosineMin = math.Inf(1)
		if err := c.admit(0, ref, got); err != nil {
			t.Fatal(err)
		}
		c.floats(0, ref, got)
		if err := c.finish(); err != nil {
			t.Fatal(err)
		}
		results = append(results, c.Comparison)
	}
	for _, o := range results[1:] {
		if diff := cmp.Diff(results[0], o); diff != "" {
			t.Errorf("another number of workers changes the result: %s", diff)
		}
	}
}

func TestExactTypesHaveNoTolerance(t *testing.T) {
	loose := Rule{Atol: 100, Rtol: 100}
	cases := map[string]struct {
		ref, got Tensor
		breaches int64
		first    []int64
		refText  string
		gotText  string
	}{
		"equal integers":             {FromInt64s(Int64, []int64{2}, []int64{1, 2}), FromInt64s(Int64, []int64{2}, []int64{1, 2}), 0, nil, "", ""},
		"a label flips":              {FromInt64s(Int64, []int64{3}, []int64{1, 2, 3}), FromInt64s(Int64, []int64{3}, []int64{1, 3, 3}), 1, []int64{0, 1}, "2", "3"},
		"large integers stay apart":  {FromInt64s(Int64, []int64{1}, []int64{1 << 53}), FromInt64s(Int64, []int64{1}, []int64{1<<53 + 1}), 1, []int64{0, 0}, "9007199254740992", "9007199254740993"},
		"another width":              {FromInt64s(Int64, []int64{2}, []int64{-1, 7}), FromInt64s(Int32, []int64{2}, []int64{-1, 7}), 0, nil, "", ""},
		"equal bits, another number": {FromInt64s(Int64, []int64{1}, []int64{-1}), FromInt64s(UInt64, []int64{1}, []int64{-1}), 1, []int64{0, 0}, "-1", "18446744073709551615"},
		"bools":                      {FromInt64s(Bool, []int64{2, 1}, []int64{1, 0}), FromInt64s(Bool, []int64{2, 1}, []int64{1, 1}), 1, []int64{0, 1, 0}, "false", "true"},
		"packed 4 bits, odd count":   {FromInt64s(Int4, []int64{3}, []int64{-8, 7, 1}), FromInt64s(Int4, []int64{3}, []int64{-8, 7, 2}), 1, []int64{0, 2}, "1", "2"},
		"strings":                    {FromStrings([]int64{2}, []string{"a", "b"}), FromStrings([]int64{2}, []string{"a", "B"}), 1, []int64{0, 1}, `"b"`, `"B"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Compare(Pair(c.ref, c.got), loose)
			if err != nil {
				t.Fatal(err)
			}
			if got.Breaches != c.breaches || got.FirstRef != c.refText || got.FirstGot != c.gotText || got.Elements != c.ref.Elements() {
				t.Errorf("got %+v", got)
			}
			if diff := cmp.Diff(c.first, got.First); diff != "" {
				t.Errorf("first: -want +got\n%s", diff)
			}
			if _, ok := got.Metrics()["cosine_min"]; ok {
				t.Error("a cosine of labels means nothing")
			}
		})
	}
}

func TestWhatCannotBeCompared(t *testing.T) {
	f := FromFloat64s(Float32, []int64{2}, []float64{1, 2})
	cases := map[string]struct {
		ref, got Tensor
		want     string
	}{
		"another shape of equal size":  {f, FromFloat64s(Float32, []int64{2, 1}, []float64{1, 2}), "shape [2 1], expected [2]"},
		"a size that would broadcast":  {f, FromFloat64s(Float32, []int64{1}, []float64{1}), "shape [1], expected [2]"},
		"a scalar against one element": {Zeros(Float32, 1), Zeros(Float32), "shape [], expected [1]"},
		"floats against integers":      {f, FromInt64s(Int64, []int64{2}, []int64{1, 2}), "type int64, expected float32"},
		"bools against integers":       {Zeros(Bool, 2), Zeros(UInt8, 2), "type uint8, expected bool"},
		"a damaged tensor":             {f, Tensor{DType: Float32, Shape: []int64{2}, Data: []byte{1}}, "candidate: float32 tensor of shape [2] has 1 bytes, expected 8"},
		"a damaged reference":          {Tensor{DType: Float32, Shape: []int64{-1}}, f, "reference: shape [-1] has a negative size"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Compare(Pair(c.ref, c.got), Rule{Atol: 1e9})
			if err == nil || err.Error() != c.want {
				t.Errorf("err = %v, want %q", err, c.want)
			}
		})
	}
	boom := errors.New("gone")
	if _, err := Compare(Pairs{Len: 1, At: func(int) (Tensor, Tensor, error) { return Tensor{}, Tensor{}, boom }}, Rule{}); !errors.Is(err, boom) {
		t.Errorf("err = %v, want %v", err, boom)
	}
	later := Pairs{Len: 2, At: func(i int) (Tensor, Tensor, error) {
		if i == 1 {
			return Zeros(Float16, 2), Zeros(Float16, 2), nil
		}
		return f, f, nil
	}}
	if _, err := Compare(later, Rule{}); err == nil {
		t.Error("samples of different types were pooled")
	}
}

func TestPSNR(t *testing.T) {
	ref := FromFloat64s(Float32, []int64{4}, []float64{1, -2, 0, 1})
	got := FromFloat64s(Float32, []int64{4}, []float64{1, -2, 0, 1.5})
	c, err := Compare(Pair(ref, got), Rule{})
	if err != nil {
		t.Fatal(err)
	}
	if want := 20 * math.Log10(2/0.25); !near(c.PSNR(), want, 1e-12) {
		t.Errorf("psnr = %v, want %v", c.PSNR(), want)
	}
	if c, _ := Compare(Pair(ref, ref), Rule{}); !math.IsInf(c.PSNR(), 1) {
		t.Errorf("psnr of equal tensors = %v", c.PSNR())
	}
}

func TestAFastExponentialIsGoodEnoughForKL(t *testing.T) {
	worst := 0.0
	for x := 0.0; x > -699; x -= 0.00371 {
		want := math.Exp(x)
		worst = max(worst, math.Abs(expNegative(x)-want)/want)
	}
	if worst > 1e-12 {
		t.Errorf("relative error %g", worst)
	}
	if expNegative(-701) != 0 || expNegative(0) != 1 || expNegative(math.Inf(-1)) != 0 {
		t.Error("the ends are wrong")
	}
}

func FuzzChoose(f *testing.F) {
	f.Add([]byte{3, 1, 2}, uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, k uint8) {
		if len(b) == 0 {
			return
		}
		v := make([]float64, len(b))
		for i, x := range b {
			v[i] = float64(x)
		}
		sorted := slices.Sorted(slices.Values(v))
		at := int(k) % len(v)
		if got := choose(v, at); got != sorted[at] {
			t.Fatalf("choose(%v, %d) = %v, want %v", b, at, got, sorted[at])
		}
	})
}
