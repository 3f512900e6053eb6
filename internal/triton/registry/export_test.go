package registry

import "context"

// AttachForTest refers to what is at ref with a statement that nobody checked.
func AttachForTest(ctx context.Context, ref Reference, statement []byte) error {
	to, err := ref.target(Options{})
	if err != nil {
		return err
	}
	model, err := to.Resolve(ctx, ref.Tag)
	if err != nil {
		return err
	}
	_, err = attach(ctx, to, model, statement)
	return err
}
