package tensor

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"
)

// The comparison walks both tensors in blocks, which are the unit of work of a
// worker, and those in chunks, which are converted to float64 in buffers that
// stay in the first-level cache. What a block finds is merged in the order of
// blocks, so that the result does not depend on the number of workers.
const (
	chunkElements = 2048
	blockElements = 1 << 20
	// histBits is how much of a float64's pattern pass one counts: the exponent
	// and 4 bits of the mantissa. Patterns of non-negative numbers sort as the
	// numbers do.
	histShift = 48
	histSize  = 1 << (64 - histShift - 1)
)

// comparer holds what Compare has found so far.
type comparer struct {
	Comparison
	pairs   Pairs
	rule    Rule
	workers int

	sumAbs, sumSq float64
	klSum         float64
	agree         int64
	hist          []int64
}

// layout says how a tensor splits into slices and rows.
type layout struct {
	n     int64
	slice int64 // elements of one slice, whose cosine is taken
	row   int64 // elements of a row of scores; 0 if there are none
	chunk int64
	block int64
}

// newLayout takes slices along the first axis where they have at least two
// elements (the cosine of single numbers is only a sign), else the whole.
func newLayout(shape []int64) layout {
	l := layout{n: Elements(shape), chunk: chunkElements, block: blockElements}
	l.slice = l.n
	if len(shape) < 2 {
		return l
	}
	if s := l.n / shape[0]; s >= 2 {
		l.slice = s
	}
	if last := shape[len(shape)-1]; last >= 2 {
		l.row = last
		// Rows end where chunks or blocks end, unless they are longer.
		if last <= l.chunk {
			l.chunk -= l.chunk % last
			l.block -= l.block % l.chunk
		} else if last <= l.block {
			l.block -= l.block % last
		}
	}
	return l
}

// part is a slice that a block saw only a piece of.
type part struct {
	index       int64
	dot, rr, gg float64
}

// rowPart is a row, or a piece of one, in a form that can be merged.
type rowPart struct {
	index          int64
	refMax, gotMax float64
	refAt, gotAt   int64
	refAtGot       float64 // the reference where the candidate is largest
	refSum, gotSum float64 // of exp(x - max)
	cross          float64 // sum of exp(ref - refMax) * (ref - got)
	finite         bool
}

// partial is what one block found.
type partial struct {
	finite, breaches, nonFinite, bothNaN int64
	sumAbs, sumSq                        float64
	maxAbs, maxRel, peak                 float64
	nan, inf                             [2]int64
	first                                int64 // -1: none
	cosMin                               float64
	cosines                              int64
	parts                                []part
	odd                                  []int64 // slices whose squares left float64's range
	agree, rows, klRows                  int64
	klSum                                float64
	rowParts                             []rowPart
}

// worker has the buffers of one goroutine.
type worker struct {
	ref, got Tensor
	rule     Rule
	l        layout
	r, g     [chunkElements]float64
	hist     []int64
	narrow   bool    // no square of an element leaves float64's range
	open     rowPart // a row that goes on in the next chunk, if isOpen
	isOpen   bool
}

// floats compares one pair of floating-point tensors.
func (c *comparer) floats(sample int, ref, got Tensor) {
	l := newLayout(ref.Shape)
	if c.hist == nil {
		c.hist = make([]int64, histSize)
	}
	blocks := int((l.n + l.block - 1) / l.block)
	found := make([]partial, blocks)
	var mu sync.Mutex
	c.parallel(blocks, func(next func() (int, bool)) {
		w := &worker{
			ref: ref, got: got, rule: c.rule, l: l, hist: make([]int64, histSize),
			narrow: ref.DType != Float64 && got.DType != Float64,
		}
		for b, ok := next(); ok; b, ok = next() {
			found[b] = w.block(int64(b) * l.block)
		}
		mu.Lock()
		defer mu.Unlock()
		for i, n := range w.hist {
			c.hist[i] += n
		}
	})
	c.merge(sample, ref, got, l, found)
}

// parallel runs work in as many goroutines as are worth it; next hands out the
// numbers below blocks.
func (c *comparer) parallel(blocks int, work func(next func() (int, bool))) {
	var taken atomic.Int64
	next := func() (int, bool) {
		b := int(taken.Add(1)) - 1
		return b, b < blocks
	}
	var wg sync.WaitGroup
	for range min(c.workers, blocks) {
		wg.Go(func() { work(next) })
	}
	wg.Wait()
}

// block compares the block that starts at an element.
func (w *worker) block(start int64) partial {
	p := partial{first: -1, cosMin: math.Inf(1)}
	end := min(start+w.l.block, w.l.n)
	cur := part{index: start / w.l.slice}
	w.isOpen = false
	for at := start; at < end; at += w.l.chunk {
		n := min(w.l.chunk, end-at)
		r, g := w.r[:n], w.g[:n]
		w.ref.loadFloat64(r, int(at))
		w.got.loadFloat64(g, int(at))
		before := p.finite
		w.elements(&p, r, g, at)
		finite := p.finite-before == n
		for lo := int64(0); lo < n; {
			sliceEnd := (cur.index + 1) * w.l.slice
			hi := min(n, sliceEnd-at)
			cur.add(r[lo:hi], g[lo:hi], finite)
			if at+hi == sliceEnd {
				w.endSlice(&p, cur, start)
				cur = part{index: cur.index + 1}
			}
			lo = hi
		}
		if w.l.row > 0 {
			w.rowsOf(&p, r, g, at, start, finite)
		}
	}
	if end%w.l.slice != 0 {
		p.parts = append(p.parts, cur)
	}
	if w.isOpen {
		p.rowParts = append(p.rowParts, w.open)
	}
	return p
}

// elements applies the rule to a chunk, and sums what does not depend on slices
// and rows.
func (w *worker) elements(p *partial, ref, got []float64, at int64) {
	atol, rtol := w.rule.Atol, w.rule.Rtol
	hist := (*[histSize]int64)(w.hist)
	got = got[:len(ref)]
	var sumAbs, sumSq float64
	maxAbs, maxRel, peak := p.maxAbs, p.maxRel, p.peak
	odd := int64(0)
	for i, r := range ref {
		g := got[i]
		d := math.Abs(g - r)
		if !(d <= math.MaxFloat64) { // NaN or infinite
			w.unusual(p, r, g, at+int64(i))
			odd++
			continue
		}
		a := math.Abs(r)
		if d > atol+rtol*a {
			if p.breaches == 0 {
				p.first = at + int64(i)
			}
			p.breaches++
		}
		hist[math.Float64bits(d)>>histShift&(histSize-1)]++
		sumAbs += d
		sumSq += d * d
		if d > maxAbs {
			maxAbs = d
		}
		if a > peak {
			peak = a
		}
		if d > maxRel*a && a > 0 {
			maxRel = d / a
		}
	}
	p.finite += int64(len(ref)) - odd
	p.sumAbs += sumAbs
	p.sumSq += sumSq
	p.maxAbs, p.maxRel, p.peak = maxAbs, maxRel, peak
}

// add takes a run of elements of one slice into its sums. Pairs whose difference
// is not finite are left out.
func (c *part) add(ref, got []float64, finite bool) {
	got = got[:len(ref)]
	var dot, rr, gg float64
	for i, r := range ref {
		g := got[i]
		if !finite && !(math.Abs(g-r) <= math.MaxFloat64) {
			continue
		}
		dot += r * g
		rr += r * r
		gg += g * g
	}
	c.dot += dot
	c.rr += rr
	c.gg += gg
}

// unusual judges a pair whose difference is not finite.
func (w *worker) unusual(p *partial, r, g float64, at int64) {
	for side, x := range [2]float64{r, g} {
		switch {
		case x != x:
			p.nan[side]++
		case math.IsInf(x, 0):
			p.inf[side]++
		}
	}
	switch {
	case r == g: // the same infinity
		return
	case r != r && g != g && w.rule.AllowNaN:
		p.bothNaN++
		return
	}
	if p.breaches == 0 {
		p.first = at
	}
	p.breaches++
	p.nonFinite++ // two NaNs, a lone one, another infinity, or a difference beyond float64
}

// endSlice takes the cosine of a slice that ended, if the block saw all of it.
func (w *worker) endSlice(p *partial, cur part, start int64) {
	if cur.index*w.l.slice < start {
		p.parts = append(p.parts, cur)
		return
	}
	cosine, ok, inRange := cur.cosine(w.narrow)
	if !inRange {
		p.odd = append(p.odd, cur.index)
	} else if ok {
		p.cosMin = min(p.cosMin, cosine)
		p.cosines++
	}
}

// cosine of a slice: not defined for two zero vectors, 0 for one. inRange is
// false where squares overflowed or underflowed, so that the sums mean nothing.
func (c part) cosine(narrow bool) (value float64, defined, inRange bool) {
	const least, most = 1e-280, 1e280
	if !narrow && (!(c.rr >= least && c.rr <= most) || !(c.gg >= least && c.gg <= most)) {
		return 0, false, false
	}
	switch {
	case c.rr == 0 && c.gg == 0:
		return 0, false, true
	case c.rr == 0 || c.gg == 0:
		return 0, true, true
	}
	if narrow { // one root is enough where the product cannot leave float64's range
		return max(-1, min(1, c.dot/math.Sqrt(c.rr*c.gg))), true, true
	}
	return max(-1, min(1, c.dot/math.Sqrt(c.rr)/math.Sqrt(c.gg))), true, true
}

// scaledCosine takes the cosine of one slice with both vectors scaled by their
// largest element: slow, but right for all of float64.
func scaledCosine(ref, got Tensor, lo, n int64) (float64, bool) {
	var peak [2]float64
	each := func(do func(r, g float64)) {
		for i := lo; i < lo+n; i++ {
			r, g := ref.Float64At(int(i)), got.Float64At(int(i))
			if math.Abs(g-r) <= math.MaxFloat64 { // as add does
				do(r, g)
			}
		}
	}
	each(func(r, g float64) {
		peak[0], peak[1] = max(peak[0], math.Abs(r)), max(peak[1], math.Abs(g))
	})
	cur := part{}
	each(func(r, g float64) {
		// Dividing by 0 would make NaN of a zero vector.
		if peak[0] > 0 {
			r /= peak[0]
		}
		if peak[1] > 0 {
			g /= peak[1]
		}
		cur.dot, cur.rr, cur.gg = cur.dot+r*g, cur.rr+r*r, cur.gg+g*g
	})
	value, defined, _ := cur.cosine(true)
	return value, defined
}

// merge adds what the blocks of one pair found, in order.
func (c *comparer) merge(sample int, ref, got Tensor, l layout, found []partial) {
	narrow := ref.DType != Float64 && got.DType != Float64
	slices := map[int64]part{}
	var open *rowPart
	var odd []int64
	for i := range found {
		p := &found[i]
		c.Finite += p.finite
		c.Breaches += p.breaches
		c.NonFinite += p.nonFinite
		c.Elements -= p.bothNaN
		c.sumAbs += p.sumAbs
		c.sumSq += p.sumSq
		c.MaxAbs, c.MaxRel, c.PeakRef = max(c.MaxAbs, p.maxAbs), max(c.MaxRel, p.maxRel), max(c.PeakRef, p.peak)
		for side := range 2 {
			c.NaN[side] += p.nan[side]
			c.Inf[side] += p.inf[side]
		}
		if p.first >= 0 {
			c.note(sample, p.first, ref, got)
		}
		c.CosineMin = min(c.CosineMin, p.cosMin)
		c.Cosines += p.cosines
		odd = append(odd, p.odd...)
		for _, s := range p.parts {
			old := slices[s.index]
			slices[s.index] = part{s.index, old.dot + s.dot, old.rr + s.rr, old.gg + s.gg}
		}
		c.agree += p.agree
		c.Rows += p.rows
		c.klSum += p.klSum
		c.KLRows += p.klRows
		for _, r := range p.rowParts {
			open = c.continueRow(open, r)
		}
	}
	c.closeRow(open)
	c.Elements += l.n
	for _, s := range slices {
		value, defined, inRange := s.cosine(narrow)
		if !inRange {
			odd = append(odd, s.index)
		} else if defined {
			c.CosineMin = min(c.CosineMin, value)
			c.Cosines++
		}
	}
	for _, index := range odd {
		if value, defined := scaledCosine(ref, got, index*l.slice, l.slice); defined {
			c.CosineMin = min(c.CosineMin, value)
			c.Cosines++
		}
	}
}

// note keeps the first breach.
func (c *comparer) note(sample int, at int64, ref, got Tensor) {
	if c.First != nil {
		return
	}
	c.First = unravel(sample, at, ref.Shape)
	c.FirstRef, c.FirstGot = ref.text(int(at)), got.text(int(at))
}

// text writes one element as people read it.
func (t Tensor) text(i int) string {
	switch {
	case t.DType == String:
		return strconv.Quote(t.Strings[i])
	case t.DType == Bool:
		return strconv.FormatBool(t.Int64At(i) != 0)
	case t.DType == UInt64:
		return strconv.FormatUint(uint64(t.Int64At(i)), 10)
	case t.DType.Floating():
		bits := 32
		if t.DType == Float64 {
			bits = 64
		}
		return strconv.FormatFloat(t.Float64At(i), 'g', -1, bits)
	}
	return strconv.FormatInt(t.Int64At(i), 10)
}
