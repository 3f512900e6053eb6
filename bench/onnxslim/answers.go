package main

import (
	"context"
	"fmt"
	"math"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
)

// difference runs two models on two batches and returns the largest difference
// of an element, relative to the larger of 1 and its output's largest element.
func difference(ctx context.Context, python, before, after string) (float64, error) {
	lib, err := ort.Find(ctx, ort.Places{Python: python})
	if err != nil {
		return 0, err
	}
	m, err := onnx.Open(before)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	var answers [2][][]tensor.Named
	for i, path := range []string{before, after} {
		s, err := ort.Open(ctx, lib, path, ort.Options{Threads: 2})
		if err != nil {
			return 0, err
		}
		for _, batch := range []int64{1, 3} {
			feed, err := feedOf(m, batch)
			if err != nil {
				s.Close()
				return 0, err
			}
			got, err := s.Infer(ctx, feed)
			if err != nil {
				s.Close()
				return 0, err
			}
			answers[i] = append(answers[i], got)
		}
		s.Close()
	}
	worst := 0.0
	for b := range answers[0] {
		for o, want := range answers[0][b] {
			d, err := apart(want, answers[1][b][o])
			if err != nil {
				return 0, err
			}
			worst = max(worst, d)
		}
	}
	return worst, nil
}

// feedOf makes inputs: pictures of noise, or token ids.
func feedOf(m *onnx.Model, batch int64) ([]tensor.Named, error) {
	var feed []tensor.Named
	for _, in := range m.Inputs() {
		shape := []int64{batch}
		for i, d := range in.Dims[1:] {
			size := d.Size
			if !d.Fixed() {
				size = 5*batch + int64(i)
			}
			shape = append(shape, size)
		}
		r := tensor.Range{Low: "-1", High: "1"}
		if in.DType == tensor.Int64 {
			r = tensor.Range{Low: "0", High: "1"}
		}
		t, err := tensor.Generate(in.DType, shape, r, in.Name)
		if err != nil {
			return nil, err
		}
		feed = append(feed, tensor.Named{Name: in.Name, Tensor: t})
	}
	return feed, nil
}

func apart(want, got tensor.Named) (float64, error) {
	if want.Name != got.Name || fmt.Sprint(want.Shape) != fmt.Sprint(got.Shape) {
		return 0, fmt.Errorf("output %s%v became %s%v", want.Name, want.Shape, got.Name, got.Shape)
	}
	a, b := want.Float64s(), got.Float64s()
	scale, worst := 1.0, 0.0
	for i := range a {
		scale = max(scale, math.Abs(a[i]))
	}
	for i := range a {
		d := math.Abs(a[i]-b[i]) / scale
		if !(d <= math.MaxFloat64) {
			return 0, fmt.Errorf("output %s: element %d was %g and became %g", want.Name, i, a[i], b[i])
		}
		worst = max(worst, d)
	}
	return worst, nil
}
