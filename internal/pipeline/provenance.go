package pipeline

import (
	"path"
	"runtime"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/report"
)

var runProvenance = failpoint.New("pipeline.run.provenance")

// byproducts are the documents that a statement vouches for beside the
// artifacts. They differ from run to run.
var byproducts = []string{"config.yaml", "environment.json", "report.json"}

// provenance writes the statement over the run's artifacts. A run that made
// none has nothing to vouch for.
func (r *runner) provenance(rep *report.Report) error {
	run := provenance.Run{
		ID: r.id, Started: r.started.UTC(), Finished: r.o.Now().UTC(), Model: rep.Model.Name, Config: artifact.Digest(rep.Run.ConfigHash),
		Until: r.o.Until, From: r.o.From, Only: r.o.Only, Tool: rep.Tool, Go: runtime.Version(), Env: rep.Environment,
		Stages: map[string]artifact.Digest{}, Materials: append([]provenance.Material{}, r.o.Materials...),
	}
	names := newLinkNames()
	for _, s := range r.steps {
		res := r.results[s.spec.Name]
		if res == nil || len(res.artifacts) == 0 {
			continue
		}
		run.Stages[res.Name] = artifact.Digest(res.Key)
		run.Materials = append(run.Materials, materials(res)...)
		for _, a := range res.artifacts {
			run.Subjects = append(run.Subjects, subjects(a.Record, names.next(a.Record, res.Name), res.Name)...)
		}
	}
	run.Materials = append(run.Materials, givenMaterials(r.given)...)
	if len(run.Subjects) == 0 {
		return nil
	}
	for _, name := range byproducts {
		run.Byproducts = append(run.Byproducts, provenance.File{Path: name, Digest: r.dir.written[name]})
	}
	text, err := provenance.Encode(run)
	if err != nil {
		return err
	}
	if err := r.dir.write(provenance.FileName, text); err != nil {
		return err
	}
	return runProvenance.Hit()
}

// subjects are the files of an artifact under its link.
func subjects(a artifact.Record, link, stage string) []provenance.File {
	out := make([]provenance.File, 0, len(a.Files))
	for _, f := range a.Files {
		out = append(out, provenance.File{Path: path.Join("artifacts", link, f.Path), Digest: f.Digest, Artifact: a.ID(), Stage: stage})
	}
	return out
}

// materials are what the key of a stage names and what mattered while it ran.
// Inputs are left out: they are artifacts of the run.
func materials(res *result) []provenance.Material {
	var out []provenance.Material
	for _, p := range res.parts {
		if name, ok := strings.CutPrefix(p.Name, "source "); ok {
			if d, err := artifact.ParseDigest(p.Value); err == nil {
				out = append(out, provenance.FileMaterial(name, d, res.Name))
			}
		}
		if name, ok := strings.CutPrefix(p.Name, "tool "); ok && p.Value != "" {
			out = append(out, provenance.ToolMaterial(name, p.Value, res.Name))
		}
	}
	for _, d := range res.deps {
		if d.Digest != "" { // what was looked for and was not there is no material
			out = append(out, provenance.FileMaterial(d.Path, d.Digest, res.Name))
		}
	}
	return out
}

// givenMaterials are artifacts that came from outside.
func givenMaterials(given Given) []provenance.Material {
	var out []provenance.Material
	for kind, arts := range given {
		for _, a := range arts {
			for _, f := range a.Files {
				out = append(out, provenance.Material{Name: "given " + string(kind) + " " + f.Path, Digest: f.Digest})
			}
		}
	}
	return out
}
