package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/jsonfile"
	"github.com/trtship/trtship/internal/regular"
)

// descriptionBytes is the largest description that is read. The largest that a
// build was seen to write has a few megabytes.
const descriptionBytes = 64 << 20

// places returns the plan and the description that are meant by a plan, by the
// folder of an engine artifact, or by the engine.json in it.
func places(path string) (plan, description string) {
	info, err := os.Stat(path)
	switch base := filepath.Base(path); {
	case err == nil && info.IsDir():
		return filepath.Join(path, PlanFile), filepath.Join(path, DescriptionFile)
	case base == PlanFile || base == DescriptionFile:
		dir := filepath.Dir(path)
		return filepath.Join(dir, PlanFile), filepath.Join(dir, DescriptionFile)
	default:
		return path, strings.TrimSuffix(path, filepath.Ext(path)) + ".json"
	}
}

// ReadDescription reads the description beside a plan and holds it to the plan:
// to its size, and to its digest where the description has one. planOrDir is a
// plan file or the folder of an engine artifact. A description that contradicts
// itself or the plan is failure.Artifact and names each key with its line.
func ReadDescription(planOrDir string) (*Description, error) {
	plan, path := places(planOrDir)
	return readBeside(plan, path, "")
}

// DescriptionOf reads the description of an engine of the store, whose digest
// of the plan is taken: it is not hashed again.
func DescriptionOf(a artifact.Artifact) (*Description, error) {
	plan, path := places(a.Dir)
	for _, f := range a.Files {
		if f.Path == PlanFile {
			return readBeside(plan, path, f.Digest)
		}
	}
	return readBeside(plan, path, "")
}

// DescriptionBeside reads the description at path of a plan of any name.
func DescriptionBeside(plan, path string) (*Description, error) { return readBeside(plan, path, "") }

// readBeside reads a description; have is the plan's digest if that is known.
func readBeside(plan, path string, have artifact.Digest) (*Description, error) {
	size, err := planSize(plan)
	if err != nil {
		return nil, err
	}
	b, err := readText(path)
	if err != nil {
		return nil, failure.New(failure.Artifact, "read engine description: %w", err).
			WithHint("a plan is described when it is built; keep %s beside it, or build it again with trtship build", filepath.Base(path))
	}
	var d Description
	lines, problems := jsonfile.Decode(b, &d)
	c := checker{d: &d, lines: lines, problems: problems}
	if len(problems) == 0 {
		c.check()
	}
	if len(c.problems) == 0 {
		c.plan(filepath.Base(plan), size)
	}
	if len(c.problems) == 0 && d.PlanDigest != "" {
		if have == "" {
			if have, err = digestOf(plan); err != nil {
				return nil, err
			}
		}
		c.digest(filepath.Base(plan), have)
	}
	if len(c.problems) > 0 {
		return nil, c.failure(path)
	}
	return &d, nil
}

func readText(path string) ([]byte, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	b, err := io.ReadAll(io.LimitReader(f, descriptionBytes+1))
	if err == nil && len(b) > descriptionBytes {
		err = fmt.Errorf("%s has more than %d bytes, which no description has", path, descriptionBytes)
	}
	return b, err
}

// planSize returns the bytes of a plan without opening it.
func planSize(plan string) (int64, error) {
	if plan == "" {
		return 0, failure.New(failure.Usage, "the path of the plan is empty").WithHint("name a .plan file")
	}
	info, err := os.Stat(plan)
	switch {
	case os.IsNotExist(err):
		return 0, failure.New(failure.Artifact, "read plan: there is no %s", plan).WithHint("name a plan that trtship build wrote, with its description beside it")
	case err != nil:
		return 0, failure.New(failure.Artifact, "read plan: %w", err)
	case info.IsDir():
		return 0, failure.New(failure.Artifact, "read plan: %s is a folder", plan).WithHint("name the .plan file in it")
	}
	if err := regular.Check(plan); err != nil {
		return 0, failure.New(failure.Artifact, "read plan: %w", err).WithHint("copy the plan into a regular file")
	}
	return info.Size(), nil
}

// digestOf hashes a plan.
func digestOf(plan string) (artifact.Digest, error) {
	f, err := regular.Open(plan)
	if err != nil {
		return "", failure.New(failure.Artifact, "read plan: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", failure.New(failure.Artifact, "read plan: %w", err).At(plan)
	}
	return artifact.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), nil
}

// Unchecked says what nothing could be held to: empty if all was.
func (d *Description) Unchecked() string {
	if d.PlanDigest == "" {
		return "the description has no plan_digest (an older release wrote it): only the plan's size was held to it, not its bytes"
	}
	return ""
}

// Write writes d as indented JSON beside its plan, with the plan's digest.
// planOrFile is the plan, the folder of both, or the engine.json that is to be
// written. A description that ReadDescription would refuse is not written; that
// is failure.Build.
func (d *Description) Write(planOrFile string) error {
	plan, path := places(planOrFile)
	size, err := planSize(plan)
	if err != nil {
		return err
	}
	if d.PlanDigest, err = digestOf(plan); err != nil {
		return err
	}
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fmt.Errorf("encode engine description: %w", err)
	}
	b = append(b, '\n')
	lines, problems := jsonfile.Decode(b, &Description{})
	c := checker{d: d, lines: lines, problems: problems}
	c.check()
	c.plan(filepath.Base(plan), size)
	if len(c.problems) > 0 {
		e := c.failure("the new plan")
		e.Code = failure.Build
		return e.WithHint("this release cannot describe what TensorRT built: give the model inputs and outputs of types and sizes that are known, or build with TensorRT 10")
	}
	return os.WriteFile(path, b, 0o644)
}
