// Package onnxpb holds the message types of the ONNX file format, generated
// from onnx.proto.
package onnxpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative onnx.proto
