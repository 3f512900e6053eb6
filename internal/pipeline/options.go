// Package pipeline runs stages: it orders them by the kinds of artifacts that
// they need and make, asks beforehand whether this machine can do what is asked,
// reuses what the store has, and puts together the report.
//
// It knows stages by their contract only. A stage that cannot find out becomes
// a broken check, one that cannot run here a missing check, and the stages
// behind it go on as far as their inputs exist.
package pipeline

import (
	"context"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/report"
)

// Options say what to run and with what.
type Options struct {
	Stages []stage.Planned // all stages, also those that are turned off
	Store  *store.Store

	// RunsDir gets the run's folder; empty writes none (see RunOne).
	RunsDir string
	// Project tells the runs of one configuration from others in the same store;
	// the configuration's absolute path. It never enters a key.
	Project string
	// BaseDir is the configuration's folder. Sources below it are known by their
	// path from it, so that a checkout elsewhere has the same keys.
	BaseDir string
	// Config is the configuration as it was resolved, for the run's folder.
	Config []byte
	// Report is what is known before the run: Tool, Model, Settings,
	// Environment, and of Run the configuration's path and digest.
	Report report.Report

	// Materials are what every stage is made with, for the statement of
	// provenance: the lock files of the Python environments.
	Materials []provenance.Material

	Until string   // last stage that is asked for
	From  string   // first stage that is asked for; those before it are taken from the store
	Only  []string // the stages that are asked for; inputs of others are taken from the store

	// Probes answer whether the machine has a capability. They are asked once,
	// before the first stage, and must be quick. A need without a probe is missing.
	Probes map[stage.Need]func(ctx context.Context) error
	// Machine describes the GPU, its driver and TensorRT for the keys of
	// hardware stages.
	Machine func(ctx context.Context) (map[string]string, error)

	// AllowMissing runs what can run and reports the rest as missing, where
	// preflight would stop.
	AllowMissing bool
	// Fresh runs every stage that is asked for, whatever the store has.
	Fresh bool
	// DiskBytes is how much the run may write to the store; less free space stops
	// it before the first stage.
	DiskBytes int64

	// CheckSources says which sources of the stages that are asked for cannot be
	// read, before the first stage starts. It may be nil.
	CheckSources func(stages, sources []string) error

	Observer Observer         // nil observes nothing
	Now      func() time.Time // nil is time.Now
	// Render writes the renderings of the finished report into the run's
	// reports folder. An error becomes a note.
	Render func(r *report.Report, dir string) error
}

// StageInfo is what an observer is told when a stage starts.
type StageInfo struct {
	Name  string
	Title string
	Index int // from 0, of those that are asked for
	Total int
}

// Observer is told how a run goes. Progress can come from several goroutines.
type Observer interface {
	// RunStarted names the run's folder; empty if there is none.
	RunStarted(id, dir string)
	StageStarted(s StageInfo)
	// StageProgress is work done out of total; total 0 is unknown.
	StageProgress(name string, done, total int64, label string)
	// StageFinished is called for every stage, also those that did not start.
	StageFinished(s report.Stage)
	Note(text string)
}

// Silent is an Observer that does nothing.
type Silent struct{}

var _ Observer = Silent{}

// RunStarted does nothing.
func (Silent) RunStarted(string, string) {}

// StageStarted does nothing.
func (Silent) StageStarted(StageInfo) {}

// StageProgress does nothing.
func (Silent) StageProgress(string, int64, int64, string) {}

// StageFinished does nothing.
func (Silent) StageFinished(report.Stage) {}

// Note does nothing.
func (Silent) Note(string) {}

// Given are artifacts that take the place of what stages would make.
type Given map[artifact.Kind][]artifact.Artifact

// Adopt copies files into the store as an artifact that no stage made, for
// Given. Its bytes are what counts: the same files are the same artifact.
func Adopt(ctx context.Context, st *store.Store, kind artifact.Kind, label string, sources ...store.Source) (artifact.Artifact, error) {
	return st.Put(ctx, store.Draft{Kind: kind, Label: label}, sources...)
}
