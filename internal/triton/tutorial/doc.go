// Package tutorial holds the tests of testdata/tutorial: what the linter must
// find in the tutorial's files, what is true of its statements, and its
// corrected form from start to end, all against the real server.
package tutorial
