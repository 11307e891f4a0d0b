# A worker that prints one step, and works until it is stopped.
echo "step 1 of generation $MUSTER_GENERATION"
exec sleep 1000000
