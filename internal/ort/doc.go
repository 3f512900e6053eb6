// Package ort runs ONNX models in ONNX Runtime, in a child process: a crash in
// native code ends the child and becomes an error with the model, the feed and
// the last words of the child, never the end of trtship.
//
// The child is this same program, started again. Whatever main uses the package
// calls [RunChildIfAsked] before anything else, as does every TestMain.
//
// A session's requests and replies travel over two pipes of their own: one line
// of JSON, then the bytes of the tensors that it announces. User code and ONNX
// Runtime may print what they like to stdout and stderr.
package ort
