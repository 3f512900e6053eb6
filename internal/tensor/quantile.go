package tensor

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// collectLimit is how many differences may be held to sort them: 24 MB.
const collectLimit = 3 << 20

// bucket is the set of differences whose pattern begins with prefix.
type bucket struct {
	shift  uint
	prefix uint64
	below  int64   // differences smaller than those of the bucket
	count  int64   // differences in it
	ranks  []int64 // the wanted ones, by their place among all differences
}

// finish turns sums into metrics.
func (c *comparer) finish() error {
	if c.Cosines == 0 {
		c.CosineMin = 0
	}
	if c.Rows > 0 {
		c.Top1 = float64(c.agree) / float64(c.Rows)
	}
	if c.KLRows > 0 {
		c.KL = c.klSum / float64(c.KLRows)
	}
	if c.Finite > 0 {
		n := float64(c.Finite)
		c.MeanAbs, c.RMSE = c.sumAbs/n, math.Sqrt(c.sumSq/n)
	}
	if c.RefType.Floating() && c.Finite > 0 {
		if err := c.rank(); err != nil {
			return err
		}
		c.histogram()
	}
	if c.NonFinite > 0 {
		c.MaxAbs = math.Inf(1)
	}
	return nil
}

// rank finds the exact quantiles, by linear interpolation between order
// statistics (R type 7). Pass one has counted the leading bits of every
// difference; more passes narrow the buckets that hold the wanted ranks until
// what is left in them fits into memory.
func (c *comparer) rank() error {
	var wanted []int64
	for _, q := range quantiles {
		lo, _ := position(q, c.Finite)
		wanted = append(wanted, lo, min(lo+1, c.Finite-1))
	}
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	found := map[int64]float64{} // by rank
	root := bucket{shift: 64, count: c.Finite, ranks: wanted}
	todo := c.settle(root.split(c.hist, histShift), found)
	for len(todo) > 0 {
		var err error
		if count(todo) <= collectLimit {
			if err = c.collect(todo, found); err != nil {
				return err
			}
			break
		}
		if todo, err = c.narrow(todo); err != nil {
			return err
		}
		todo = c.settle(todo, found)
	}
	c.Quantiles = map[int]float64{}
	for _, q := range quantiles {
		lo, frac := position(q, c.Finite)
		a, b := found[lo], found[min(lo+1, c.Finite-1)]
		c.Quantiles[q] = a + frac*(b-a)
	}
	return nil
}

// position is where quantile q (in thousandths) lies among n sorted values.
func position(q int, n int64) (int64, float64) {
	// In integers, for n-1 times a thousandth is not exact in floating point.
	p := int64(q) * (n - 1)
	return p / 1000, float64(p%1000) / 1000
}

// split returns the parts of b that hold wanted ranks, by a histogram of the
// bits from shift on.
func (b bucket) split(hist []int64, shift uint) []bucket {
	var out []bucket
	below, ranks := b.below, b.ranks
	for i, n := range hist {
		k := 0
		for k < len(ranks) && ranks[k] < below+n {
			k++
		}
		if k > 0 {
			out = append(out, bucket{
				shift: shift, prefix: b.prefix<<(b.shift-shift) | uint64(i),
				below: below, count: n, ranks: ranks[:k],
			})
			ranks = ranks[k:]
		}
		below += n
	}
	return out
}

func count(bs []bucket) int64 {
	n := int64(0)
	for _, b := range bs {
		n += b.count
	}
	return n
}

// settle takes out the buckets whose differences are all the same number.
func (c *comparer) settle(todo []bucket, found map[int64]float64) []bucket {
	return slices.DeleteFunc(todo, func(b bucket) bool {
		// No difference of narrower types is that small, but for 0.
		zeros := b.shift == histShift && b.prefix == 0 && c.RefType != Float64 && c.GotType != Float64
		if b.shift > 0 && !zeros {
			return false
		}
		for _, r := range b.ranks {
			found[r] = math.Float64frombits(b.prefix << b.shift)
		}
		return true
	})
}

// narrow splits every bucket by its next bits.
func (c *comparer) narrow(todo []bucket) ([]bucket, error) {
	const bitsMore = 16
	hists := make([][]int64, len(todo))
	for i := range hists {
		hists[i] = make([]int64, 1<<bitsMore)
	}
	var mu sync.Mutex
	err := c.members(todo, func() (func(int, uint64), func()) {
		own := make([][]int64, len(todo))
		for i := range own {
			own[i] = make([]int64, 1<<bitsMore)
		}
		visit := func(i int, pattern uint64) {
			own[i][pattern>>(todo[i].shift-bitsMore)&(1<<bitsMore-1)]++
		}
		return visit, func() {
			mu.Lock()
			defer mu.Unlock()
			for i := range own {
				for k, n := range own[i] {
					hists[i][k] += n
				}
			}
		}
	})
	var out []bucket
	for i, b := range todo {
		out = append(out, b.split(hists[i], b.shift-bitsMore)...)
	}
	return out, err
}

// collect gathers the differences of the buckets and selects the wanted ones.
func (c *comparer) collect(todo []bucket, found map[int64]float64) error {
	values := make([][]float64, len(todo))
	used := make([]atomic.Int64, len(todo))
	for i, b := range todo {
		values[i] = make([]float64, b.count)
	}
	err := c.members(todo, func() (func(int, uint64), func()) {
		return func(i int, pattern uint64) {
			values[i][used[i].Add(1)-1] = math.Float64frombits(pattern)
		}, func() {}
	})
	if err != nil {
		return err
	}
	for i, b := range todo {
		from := 0
		for _, r := range b.ranks { // in ascending order
			at := int(r - b.below)
			found[r] = choose(values[i][from:], at-from)
			from = at // everything before is no larger
		}
	}
	return nil
}

// choose returns the k-th smallest of v, and leaves no larger one before it and
// no smaller one after it.
func choose(v []float64, k int) float64 {
	for lo, hi := 0, len(v)-1; lo < hi; {
		a, b, m := v[lo], v[hi], v[lo+(hi-lo)/2]
		pivot := max(min(a, b), min(max(a, b), m))
		i, j := lo, hi
		for i <= j {
			for v[i] < pivot {
				i++
			}
			for v[j] > pivot {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			hi = j
		case k >= i:
			lo = i
		default:
			return v[k]
		}
	}
	return v[k]
}

// members goes over all finite differences again and visits those that lie in a
// bucket, with the bucket's number and the pattern of the difference. start is
// called by each worker, and done when it ends.
func (c *comparer) members(todo []bucket, start func() (visit func(int, uint64), done func())) error {
	// One byte a leading pattern: 0 for none, else the first bucket there.
	var table [histSize]uint8
	for i := len(todo) - 1; i >= 0; i-- {
		table[todo[i].prefix<<todo[i].shift>>histShift] = uint8(i + 1)
	}
	for i := range c.pairs.Len {
		ref, got, err := c.pairs.At(i)
		if err != nil {
			return err
		}
		if err := c.admit(i, ref, got); err != nil {
			return err
		}
		l := newLayout(ref.Shape)
		blocks := int((l.n + l.block - 1) / l.block)
		c.parallel(blocks, func(next func() (int, bool)) {
			w := &worker{ref: ref, got: got, l: l}
			visit, done := start()
			for b, ok := next(); ok; b, ok = next() {
				w.visit(int64(b)*l.block, &table, todo, visit)
			}
			done()
		})
	}
	return nil
}

func (w *worker) visit(start int64, table *[histSize]uint8, todo []bucket, visit func(int, uint64)) {
	end := min(start+w.l.block, w.l.n)
	for at := start; at < end; at += chunkElements {
		n := min(chunkElements, end-at)
		ref, got := w.r[:n], w.g[:n]
		w.ref.loadFloat64(ref, int(at))
		w.got.loadFloat64(got, int(at))
		for i, r := range ref {
			d := math.Abs(got[i] - r)
			pattern := math.Float64bits(d)
			k := table[pattern>>histShift&(histSize-1)]
			if k == 0 || !(d <= math.MaxFloat64) {
				continue
			}
			for b := int(k) - 1; b < len(todo); b++ {
				if pattern>>todo[b].shift == todo[b].prefix {
					visit(b, pattern)
					break
				}
			}
		}
	}
}

// histogram draws the counts of pass one with edges at powers of two, so that
// they are exact: the first bin is [0, smallest), the last includes its end.
func (c *comparer) histogram() {
	const octave = 1 << (52 - histShift) // counters an octave
	first, last := -1, -1
	for i := octave; i < len(c.hist); i++ { // what lies below is 0 or denormal
		if c.hist[i] > 0 {
			if first < 0 {
				first = i / octave
			}
			last = i / octave
		}
	}
	c.Edges, c.Counts = []float64{0}, []int64{0}
	for _, n := range c.hist[:octave] {
		c.Counts[0] += n
	}
	if first < 0 {
		c.Edges = append(c.Edges, math.SmallestNonzeroFloat64)
		return
	}
	const most = 40
	step := (last-first)/most + 1
	c.Edges = append(c.Edges, math.Ldexp(1, first-1023))
	for e := first; e <= last; e += step {
		n := int64(0)
		for _, k := range c.hist[e*octave : min((e+step)*octave, len(c.hist))] {
			n += k
		}
		c.Counts = append(c.Counts, n)
		c.Edges = append(c.Edges, math.Ldexp(1, min(e+step, 2046)-1023))
	}
}
